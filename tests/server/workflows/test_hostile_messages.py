"""No message fails a workflow task, and pending calls can still be answered once."""

from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.service import RPCError

from tests.agents import PAY, Till, payer
from tests.server.conftest import Serve
from tests.steps import (
    catch_refusal,
    count_events,
    find_stuck_tasks,
    make_raw_payload,
    start_and_wait,
    wait_for_calls,
    wait_for_ignored_answers,
    wait_until_quiet,
)
from waystation.client.agent_client import AgentClient, Invocation
from waystation.testing import AgentEnvironment, says

GOOD = b'{"function_call_id": "fc-1", "action": "approve"}'


def approve_with(response: bytes) -> bytes:
    """Return an approval with this response of any type."""
    return b'{"function_call_id": "fc-1", "action": "approve", "response": ' + response + b"}"


UNREADABLE: dict[str, list[Any]] = {
    "broken JSON": [make_raw_payload(b'{"function_call_id": ')],
    "nothing": [make_raw_payload(b"")],
    "not UTF-8": [make_raw_payload(b'{"function_call_id": "\xff\xfe", "action": "approve"}')],
    "a byte order mark": [make_raw_payload(b"\xef\xbb\xbf" + GOOD)],
    "trailing bytes": [make_raw_payload(GOOD + b"}")],
    "wrong shape": [["fc-1", "approve"]],
    "null": [None],
    "a number": [5],
    "NaN": [make_raw_payload(approve_with(b'{"n": NaN}'))],
    "infinity": [make_raw_payload(approve_with(b'{"n": Infinity}'))],
    "a number that overflows": [make_raw_payload(approve_with(b'{"n": 1e400}'))],
    "a lone surrogate": [make_raw_payload(approve_with(b'{"s": "\\ud800"}'))],
    "an integer of 5,000 digits": [make_raw_payload(approve_with(b'{"n": ' + b"9" * 5_000 + b"}"))],
    "nesting 190 deep": [make_raw_payload(approve_with(b'{"a":' * 190 + b"1" + b"}" * 190))],
    "nesting 1,000 deep": [make_raw_payload(approve_with(b"[" * 1_000 + b"]" * 1_000))],
    "nesting 100,000 deep": [make_raw_payload(b"[" * 100_000)],
    "an unknown encoding": [make_raw_payload(GOOD, b"binary/encrypted")],
    "binary": [make_raw_payload(GOOD, b"binary/plain")],
    "Temporal's null": [make_raw_payload(b"", b"binary/null")],
    "protobuf": [make_raw_payload(b"\x0a\x04fc-1", b"binary/protobuf")],
    "no encoding": [make_raw_payload(GOOD, None)],
    "an encoding that is not text": [make_raw_payload(GOOD, b"\xff\xfe")],
    "zero arguments": [],
    "two arguments": [{"function_call_id": "fc-1", "action": "approve"}, {"by": "eve"}],
    "two broken arguments": [make_raw_payload(b"{"), make_raw_payload(b"{", b"binary/encrypted")],
    "1.9 MB": [{"function_call_id": "fc-1", "action": "approve", "comment": "x" * 1_900_000}],
}
"""Values that are not answers, though some are almost valid."""


async def start_waiting(client: AgentClient) -> Invocation:
    """Start an invocation and wait until its payment waits."""
    invocation = await start_and_wait(client.start("payer", "pay 5"), "fc-1")
    await wait_until_quiet(invocation)
    return invocation


async def approve_and_finish(invocation: Invocation, till: Till) -> None:
    """Approve the payment, and verify that it happened once and nothing failed."""
    await wait_for_calls(invocation, "fc-1")
    assert till.paid == []
    await invocation.approve("fc-1")
    assert (await invocation.result()).text == "Paid."
    assert till.paid == [5]
    assert find_stuck_tasks(await invocation.history()) == []


async def test_an_invalid_signal_is_recorded_as_ignored(serve: Serve) -> None:
    """Each invalid signal has one event and no other effect."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid."))) as env:
        invocation = await start_waiting(env.client)
        for number, (form, arguments) in enumerate(UNREADABLE.items(), 1):
            await invocation.handle.signal("answer", args=arguments)
            assert await wait_for_ignored_answers(invocation, number) == ["InvalidAnswer"] * number, form
        await approve_and_finish(invocation, till)


async def test_an_invalid_update_is_refused_without_a_trace(serve: Serve) -> None:
    """Every form is refused as an invalid answer, and no event is recorded."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid."))) as env:
        invocation = await start_waiting(env.client)
        before = await count_events(invocation)
        for form, arguments in UNREADABLE.items():
            error = await catch_refusal(invocation.handle.execute_update("submit_answer", args=arguments))
            # The SDK itself refuses several arguments.
            several = form.startswith("two")
            assert error == "InvalidAnswer" or (several and error in ("TypeError", "RuntimeError")), form
        assert await count_events(invocation) == before
        await approve_and_finish(invocation, till)


async def test_a_signal_with_another_name_is_recorded_as_ignored(serve: Serve) -> None:
    """Even a valid answer must be sent to `answer`. A name that the server refuses does not arrive."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid."))) as env:
        invocation = await start_waiting(env.client)
        answer = {"function_call_id": "fc-1", "action": "approve"}
        names = ["approve", "ANSWER", "submit_answer", " ", "a" * 200, "é\u202e", "__temporal_x", "__stack_trace"]
        for number, name in enumerate(names, 1):
            await invocation.handle.signal(name, answer)
            assert await wait_for_ignored_answers(invocation, number) == ["InvalidAnswer"] * number, name
        with pytest.raises(RPCError):
            await invocation.handle.signal("", answer)
        await approve_and_finish(invocation, till)


HUGE = {"function_call_id": "fc-1", "action": "approve", "comment": "x" * 2_200_000}


def stock(env: AgentEnvironment, invocation: Invocation) -> WorkflowHandle[Any, Any]:
    """Return a handle of a client that has no store for large payloads."""
    client = Client(env.temporal.service_client, namespace=env.temporal.namespace)
    return client.get_workflow_handle(invocation.id)


async def test_a_signal_over_the_servers_limit_is_refused_at_the_sender(serve: Serve) -> None:
    """The invocation never sees it."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid."))) as env:
        invocation = await start_waiting(env.client)
        with pytest.raises(RPCError, match="exceeds limit"):
            await stock(env, invocation).signal("answer", HUGE)
        await approve_and_finish(invocation, till)


async def test_unknown_updates_are_refused_without_a_trace(serve: Serve) -> None:
    """Only `submit_answer` is an update of an invocation."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid."))) as env:
        invocation = await start_waiting(env.client)
        before = await count_events(invocation)
        for name in ("approve", "answer", "__temporal_x", "x" * 200):
            with pytest.raises(WorkflowUpdateFailedError):
                await invocation.handle.execute_update(name, {"function_call_id": "fc-1", "action": "approve"})
        assert await count_events(invocation) == before
        await approve_and_finish(invocation, till)


async def test_hostile_queries_fail_for_their_sender(serve: Serve) -> None:
    """Unknown names and invalid arguments do not affect the invocation."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid."))) as env:
        invocation = await start_waiting(env.client)
        before = await count_events(invocation)
        queries: list[tuple[str, list[Any]]] = [
            ("nothing", []),
            ("__temporal_x", []),
            ("events", ["first"]),
            ("events", [make_raw_payload(b"{")]),
            ("events", [make_raw_payload(b"1", b"binary/encrypted")]),
            ("events", [0, 1, 2]),
            ("state", [make_raw_payload(b"\xff")]),
        ]
        for name, arguments in queries:
            with pytest.raises(WorkflowQueryFailedError):
                await invocation.handle.query(name, args=arguments)
        assert len(await invocation.handle.query("events")) == 3
        assert len(await invocation.handle.query("events", -5)) == 3
        assert await invocation.handle.query("events", 10**9) == []
        assert await count_events(invocation) == before
        await approve_and_finish(invocation, till)


async def test_signals_before_the_first_workflow_task_do_no_harm(serve: Serve) -> None:
    """Invalid signals that precede the start are ignored like any other."""
    till = Till()
    async with serve(payer(till.pay, PAY, says("Paid.")), verify=False) as env:
        queue = env.client.task_queue
    invocation = await env.client.start("payer", "pay 5")
    for arguments in (UNREADABLE["broken JSON"], UNREADABLE["zero arguments"], UNREADABLE["two arguments"]):
        await invocation.handle.signal("answer", args=arguments)
    async with serve(payer(till.pay, PAY, says("Paid.")), task_queue=queue, adopt=[invocation]):
        assert await wait_for_ignored_answers(invocation, 3) == ["InvalidAnswer"] * 3
        await approve_and_finish(invocation, till)
