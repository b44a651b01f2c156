"""Of answers that arrive together, twice or in any order, one counts: the first that was recorded."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.agents import ASK, Till, ask, asker, model_of, payer
from tests.server.conftest import Serve
from tests.steps import (
    approve_and_finish,
    catch_refusal,
    ignored_reasons,
    start_and_wait,
    tool_responses,
    wait_for_calls,
    wait_for_ignored_answers,
    wait_for_model_calls,
    wait_until,
)
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.errors import AlreadyAnswered
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

PATIENT = timedelta(seconds=60)
"""A worker that stops may take a workflow task with it; the server gives it to another after 10 s."""


async def start_waiting(client: Any, agent: str) -> Invocation:
    """Start an invocation and wait until its only call is pending."""
    return await start_and_wait(client.start(agent, "go"), "fc-1")


async def task_scheduled(invocation: Invocation) -> bool:
    """Return whether a workflow task waits for a worker, as it does after the server has accepted an update."""
    return (await invocation.handle.describe()).raw_description.HasField("pending_workflow_task")


async def test_the_first_of_two_signals_in_one_workflow_task_counts(serve: Serve) -> None:
    """Of two signals that arrive without a running worker, the first one in the history counts."""
    till = Till()
    agent = payer(till.pay)
    async with serve(agent, verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_waiting(env.client, "payer")
    await invocation.approve("fc-1", signal=True)
    await invocation.reject("fc-1", signal=True)
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        await invocation.result()
        assert till.paid == [5]
        assert ignored_reasons((await invocation.log()).state.events) == ["AlreadyAnswered"]
        assert len(model_of(agent).requests) == 2


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_signal_and_an_update_in_one_workflow_task_count_once(serve: Serve, signal_first: bool) -> None:
    """The first one that the workflow receives counts; the other is refused or ignored, and the effect happens once."""
    till = Till()
    agent = payer(till.pay)
    async with serve(agent, verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_waiting(env.client, "payer")
    if signal_first:
        await invocation.approve("fc-1", signal=True)
    update = asyncio.create_task(invocation.approve("fc-1", confirm_within=PATIENT))
    if not signal_first:
        await wait_until(lambda: task_scheduled(invocation), "the update at the server")
        await invocation.approve("fc-1", signal=True)
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        await invocation.result()
        [outcome] = await asyncio.gather(update, return_exceptions=True)
        ignored_signals = ignored_reasons((await invocation.log()).state.events)
        update_counted = isinstance(outcome, dict)
        assert update_counted == (ignored_signals == ["AlreadyAnswered"])
        assert update_counted or isinstance(outcome, AlreadyAnswered)
        assert till.paid == [5]


@pytest.mark.parametrize("wake", [True, False])
async def test_simultaneous_progress_by_signal_and_update_reads_the_same_to_all(serve: Serve, wake: bool) -> None:
    """Both progress reports count, and workflow, history and model agree on their order."""
    agent = asker(ASK, says("One."), says("Two."), says("Three."))
    async with serve(agent, verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_waiting(env.client, "asker")
    update = asyncio.create_task(
        invocation.answer("progress", "fc-1", response={"by": "update"}, wake=wake, confirm_within=PATIENT)
    )
    await wait_until(lambda: task_scheduled(invocation), "the update at the server")
    await invocation.answer("progress", "fc-1", response={"by": "signal"}, wake=wake, signal=True)
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        await update
        events = [e for e in (await invocation.log()).state.events if e.function_responses()]
        assert {e.function_responses()[0]["response"]["by"] for e in events} == {"update", "signal"}
        [held] = await invocation.handle.query("pending")
        assert held["interim"] == events[-1].function_responses()[0]["response"]
        if wake:
            assert tool_responses(await wait_for_model_calls(model_of(agent), 2)) == [held["interim"]]
        await invocation.respond({"by": "end"}, "fc-1")
        await invocation.result()
        assert len(model_of(agent).requests) == (3 if wake else 2)


async def test_one_of_many_concurrent_updates_counts(serve: Serve) -> None:
    """Approvals and rejections race; one is accepted, the others are refused, and the effect matches it."""
    till = Till()
    agent = payer(till.pay)
    async with serve(agent) as env:
        invocation = await start_waiting(env.client, "payer")
        racers = [invocation.answer("approve" if n % 2 else "reject", "fc-1", by=str(n)) for n in range(8)]
        outcomes = await asyncio.gather(*racers, return_exceptions=True)
        accepted = [outcome for outcome in outcomes if isinstance(outcome, dict)]
        assert len(accepted) == 1
        # One that arrives after the end finds no invocation; an earlier one is refused.
        await invocation.result()
        assert till.paid == ([5] if accepted[0]["action"] == "approve" else [])
        assert len(model_of(agent).requests) == 2


async def test_a_reused_update_id_gets_the_first_receipt(serve: Serve) -> None:
    """The server answers a used ID with the first outcome; the receipt names the action, so the sender notices."""
    till = Till()
    two_calls = calls(("pay", {"amount": 5}), ("ask", {}))
    model = ScriptedModel(two_calls, says("Done."))
    tools = [FunctionTool(till.pay, require_confirmation=True), LongRunningFunctionTool(ask)]
    async with serve(Agent(name="payer", model=model, tools=tools)) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1", "fc-2")
        for action in ("approve", "reject"):
            receipt = await invocation.handle.execute_update(
                "submit_answer", {"function_call_id": "fc-1", "action": action}, id="the-same"
            )
            assert receipt["action"] == "approve"
        await wait_for_calls(invocation, "fc-2")
        await approve_and_finish(invocation, "fc-2")
        assert till.paid == [5]


async def test_a_refused_update_id_may_be_used_again(serve: Serve) -> None:
    """A refused update ID may be used again, because nothing was recorded for it."""
    till = Till()
    agent = payer(till.pay)
    async with serve(agent) as env:
        invocation = await start_waiting(env.client, "payer")

        async def submit(call: str) -> Any:
            answer = {"function_call_id": call, "action": "approve"}
            return await invocation.handle.execute_update("submit_answer", answer, id="again")

        assert await catch_refusal(submit("fc-9")) == "UnknownCall"
        assert (await submit("fc-1"))["accepted"] is True
        await invocation.result()
        assert till.paid == [5]


async def test_a_signal_before_the_call_exists_is_ignored(serve: Serve) -> None:
    """An approval cannot be given in advance, although the ID of the first call can be guessed."""
    till = Till()
    agent = payer(till.pay)
    async with serve(agent, verify=False) as env:
        queue = env.client.task_queue
    client = env.client
    invocation = await client.start("payer", "go")
    await invocation.approve("fc-1", signal=True)
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        assert await wait_for_ignored_answers(invocation, 1) == ["UnknownCall"]
        await wait_for_calls(invocation, "fc-1")
        assert till.paid == []
        await approve_and_finish(invocation, "fc-1")
        assert till.paid == [5]
