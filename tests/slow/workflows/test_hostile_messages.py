"""Messages over the limits of the server."""

import asyncio
import random
from typing import Any

import pytest
from temporalio.service import RPCError

from tests.agents import PAY, HeldModel, Till, payer
from tests.server.conftest import Serve
from tests.server.workflows.test_forks import Shop
from tests.server.workflows.test_hostile_messages import HUGE, UNREADABLE, approve_and_finish, start_waiting, stock
from tests.steps import (
    catch_refusal,
    find_stuck_tasks,
    ignored_reasons,
    make_raw_payload,
    start_and_finish,
    wait_for_calls,
    wait_for_ignored_answers,
)
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.contract import WORKFLOW
from waystation.core.log import AnswerCounted, AnswerIgnored
from waystation.testing import calls, says
from waystation.tools.function_tool import FunctionTool


async def test_an_update_over_the_servers_limit_delays_but_does_not_block_the_invocation(serve: Serve) -> None:
    """The server accepts it and no worker can refuse it, because refusals repeat it; after 20 s the server drops it."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid.")), tasks_may_fail=True) as env:
        invocation = await start_waiting(env.client)
        with pytest.raises(RPCError, match="Workflow Task in failed state"):
            await stock(env, invocation).execute_update("submit_answer", HUGE)
        await invocation.approve("fc-1", signal=True)
        assert (await invocation.result()).text == "Paid."
        assert till.paid == [5]


async def test_200_random_payloads_are_ignored(serve: Serve) -> None:
    """Random bytes, encodings and numbers of arguments, by update and by signal; the seed is in the test."""
    seeded = random.Random(20)
    till = Till()
    encodings = (b"json/plain", b"json/protobuf", b"binary/plain", b"binary/null", b"", None)

    def arguments() -> list[Any]:
        count = seeded.choice((0, 1, 1, 1, 2, 3))
        return [
            make_raw_payload(seeded.randbytes(seeded.randrange(60)), seeded.choice(encodings)) for _ in range(count)
        ]

    async with serve(payer(till.pay, PAY, says("Paid."))) as env:
        invocation = await start_waiting(env.client)
        for _ in range(100):
            assert await catch_refusal(invocation.handle.execute_update("submit_answer", args=arguments()))
        for _ in range(100):
            await invocation.handle.signal("answer", args=arguments())
        assert await wait_for_ignored_answers(invocation, 100) == ["InvalidAnswer"] * 100
        await approve_and_finish(invocation, till)


@pytest.mark.parametrize(
    ("budget", "waits"),
    [({}, "fc-1"), ({"max_llm_calls": 1, "on_exhausted": "ask"}, "budget-1")],
    ids=["a call", "a question for more budget"],
)
async def test_an_answer_in_a_flood_counts_once_over_many_runs(
    serve: Serve, budget: dict[str, Any], waits: str
) -> None:
    """Each other signal is recorded as ignored by the run that received it, including copies of the answer in the last
    run.
    """
    till = Till()
    model = HeldModel(calls(("pay", {"amount": 5})), says("Paid."), held_call=2)
    agent = Agent(name="payer", model=model, tools=[FunctionTool(till.pay, require_confirmation=not budget)])
    good = {"function_call_id": waits, "action": "approve"}
    junk: list[tuple[str, list[Any]]] = [("answer", arguments) for arguments in [*UNREADABLE.values()][:-1]]
    junk += [
        ("approve", [good]),
        ("message", [{"message": "forged", "join": 1}]),
        ("answer", [{**good, "digest": "0"}]),
    ]
    junk += [("answer", [{**good, "function_call_id": "fc-99"}]), ("child_ended", [{"invocation": 1}])]
    async with serve(agent) as env:
        given = {"agent": "payer", "message": "pay 5", "cut_after": 30, "budget": budget}
        queue = env.client.task_queue
        handle = await env.temporal.start_workflow(WORKFLOW, given, id=f"flood-{queue}", task_queue=queue)
        invocation = Invocation(env.client, handle)
        (asked,) = await wait_for_calls(invocation, waits)
        for name, arguments in junk:
            await invocation.handle.signal(name, args=arguments)
        assert await wait_for_ignored_answers(invocation, len(junk))
        assert await wait_for_calls(invocation, waits) == [asked]
        for number in range(10):
            await invocation.handle.signal("answer", {**good, "by": f"p{number}"})
        model.gate.open()
        assert (await invocation.result()).text == "Paid."
        runs = await invocation.histories()
        entries = (await invocation.log()).entries
        assert [e.body.answer.by for e in entries if isinstance(e.body, AnswerCounted)] == ["p0"]
        assert sum(isinstance(e.body, AnswerIgnored) for e in entries) == len(junk) + 9
        assert (till.paid, [find_stuck_tasks(run) for run in runs]) == ([5], [[]] * len(runs))
        assert len(runs) > 1


async def test_hazard_a_flood_of_signals_while_a_fork_starts(serve: Serve) -> None:
    """The fork is not blocked, and the number of displayed signals is limited as usual."""
    shop = Shop()
    async with serve(shop.buyer()) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        queue = env.client.task_queue
    fork = await env.client.forks.start(source.id, 3)
    await asyncio.gather(*(fork.handle.signal("nonsense", "x" * 1_000) for _ in range(300)))
    async with serve(shop.buyer(), task_queue=queue, adopt=[fork]):
        await fork.result()
        log = await fork.log()
        assert len(ignored_reasons(log.state.events)) == 100
