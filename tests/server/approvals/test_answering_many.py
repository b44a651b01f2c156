"""Answering many calls at once yields one result for each, loses nothing and does nothing twice."""

import asyncio
import subprocess
import sys
from datetime import timedelta

import pytest

from tests.agents import Till
from tests.server.approvals.asking import asker, listed, payer
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, reject_and_finish, start_and_wait, wait_for_calls
from waystation.client import Outcome
from waystation.core.errors import AnswerUnconfirmed, DigestMismatch, UnknownCall
from waystation.core.payload import JsonObject


def words(outcomes: list[Outcome]) -> dict[str, str]:
    """Return the outcome of each answer as one word."""
    return {each.approval_id: "counted" if each.receipt else type(each.error).__name__ for each in outcomes}


async def test_each_call_has_its_own_result_and_a_refusal_stops_nothing(serve: Serve) -> None:
    """Unknown, malformed and answered calls do not affect valid ones; a call that is named twice is answered once."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        started = [await env.client.start("payer", str(n)) for n in range(3)]
        for invocation in started:
            await wait_for_calls(invocation, "fc-1")
        await started[0].approve()
        names = [f"{each.id}/fc-1" for each in started]
        addresses = [*names, names[2], "no-such/fc-1", "fc-1"]
        outcomes = [each async for each in env.client.approvals.answer_all(addresses, "approve", by="dana")]
        assert words(outcomes) == {
            names[0]: "AlreadyAnswered",
            names[1]: "counted",
            names[2]: "counted",
            "no-such/fc-1": "UnknownCall",
            "fc-1": "UnknownCall",
        }
        for invocation in started:
            await invocation.result()
        assert till.paid == [5, 5, 5]


async def test_listed_calls_are_answered_as_they_were_displayed(serve: Serve) -> None:
    """Each answer has the digest of its call, so a call that changed in the meantime is not answered."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        user = env.client.task_queue
        started = [await env.client.start("payer", str(n), user_id=user) for n in range(2)]
        listed_calls = await listed(env.client, 2, user_id=user)
        changed = listed_calls[0].model_copy(update={"digest": "0" * 32})
        outcomes = [each async for each in env.client.approvals.answer_all([changed, listed_calls[1]], "approve")]
        assert {type(each.error) for each in outcomes} == {DigestMismatch, type(None)}
        matches = env.client.approvals.each(user_id=user, tool="pay")
        assert {each.receipt is None for each in [o async for o in env.client.approvals.answer_all(matches, "approve")]}
        for invocation in started:
            await invocation.result()
        assert till.paid == [5, 5]


async def test_the_number_of_simultaneous_answers_is_limited(serve: Serve) -> None:
    """A large list takes neither much memory nor the whole server."""
    async with serve(asker()) as env:
        under_way, most = 0, 0

        async def slow(_id: str, _action: str, **_fields: object) -> JsonObject:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return {}

        approvals = env.client.approvals
        approvals.answer = slow  # type: ignore[method-assign,assignment]  # counts, and asks no server
        names = [f"inv-{n}/fc-1" for n in range(20)]
        assert len([each async for each in approvals.answer_all(names, "approve", at_once=3)]) == 20
        assert most == 3


async def test_progress_that_is_sent_again_counts_once(serve: Serve) -> None:
    """Progress does not close the call, so its ID identifies the repetition."""
    async with serve(asker()) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
        results = []
        for status in ("50 %", "50 %", "60 %"):
            many = env.client.approvals.answer_all(
                [f"{invocation.id}/fc-1"], "progress", response={"status": status}, wake=False
            )
            results += [each async for each in many]
        assert [each.error for each in results] == [None, None, None]
        await approve_and_finish(invocation)


async def test_an_answer_without_a_worker_is_unknown_and_not_failed(serve: Serve) -> None:
    """Hazard: an update that timed out is applied later. A signal is accepted at once and applied by a later worker."""
    till = Till()
    async with serve(payer(till.pay), verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
    name = [f"{invocation.id}/fc-1"]
    many = env.client.approvals.answer_all(name, "approve", confirm_within=timedelta(seconds=0.2))
    [unknown] = [each async for each in many]
    assert isinstance(unknown.error, AnswerUnconfirmed)
    [sent] = [each async for each in env.client.approvals.answer_all(name, "approve", signal=True)]
    assert sent.receipt == {"sent": True}
    async with serve(payer(till.pay), task_queue=queue):
        await invocation.result()
        assert till.paid == [5]


PROGRAM = """
import asyncio, sys
from waystation import AgentClient

async def main():
    client = await AgentClient.connect(address=sys.argv[1])
    calls = client.approvals.each(user_id=sys.argv[2])
    async for outcome in client.approvals.answer_all(calls, "approve", at_once=2, by="dana"):
        print(outcome.approval_id, bool(outcome.receipt), flush=True)

asyncio.run(main())
"""


async def test_an_interrupted_list_of_answers_can_be_sent_again(serve: Serve) -> None:
    """Every call is approved exactly once, whatever had arrived before the program was killed."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        user = env.client.task_queue
        started = [await env.client.start("payer", str(n), user_id=user) for n in range(5)]
        await listed(env.client, 5, user_id=user)
        command = [sys.executable, "-c", PROGRAM, env.server.address, user]
        first = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert first.stdout is not None
        await first.stdout.readline()
        first.kill()
        await first.communicate()
        second = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        await second.communicate()
        for invocation in started:
            await invocation.result()
        assert till.paid == [5] * 5
        for invocation in started:
            call = (await invocation.log()).state.calls["fc-1"]
            assert call.answer is not None
            assert call.answer.by == "dana"


async def test_an_id_of_a_sibling_invocation_answers_nothing_here(serve: Serve) -> None:
    """Hazard: an answer with the ID of another invocation. A call with the same number elsewhere keeps waiting."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        one, other = [await env.client.start("payer", n) for n in ("one", "other")]
        await wait_for_calls(one, "fc-1")
        [before] = await wait_for_calls(other, "fc-1")
        with pytest.raises(UnknownCall):
            await env.client.approvals.approve(f"{one.id}/{other.id}/fc-1")
        await env.client.approvals.approve(f"{one.id}/fc-1")
        await one.result()
        assert await other.pending() == [before]
        await reject_and_finish(other)
        assert till.paid == [5]
