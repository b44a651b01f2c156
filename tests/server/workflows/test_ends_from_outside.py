"""Invocations that are ended by others, and messages that arrive too late."""

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError, TerminatedError
from temporalio.service import RPCError

from tests.agents import ASK, PAY, Gate, Till, ask, asker, model_of, payer
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, start_and_wait, tool_responses, wait_for_calls, wait_until, wait_until_quiet
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.errors import ModelOverloaded
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


def sealed(tool: str) -> JsonObject:
    """Return the response to a call that was open when its invocation ended."""
    return {"error": f"The invocation ended before `{tool}` was answered.", "error_type": "Cancelled"}


async def cancelled(invocation: Invocation) -> None:
    """Wait until the invocation is cancelled."""
    with pytest.raises(WorkflowFailureError) as caught:
        await invocation.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert (await invocation.handle.describe()).status == WorkflowExecutionStatus.CANCELED


async def responses_in(invocation: Invocation) -> dict[str, JsonObject]:
    """Return the latest response to each call, by the events."""
    events = (await invocation.log()).state.events
    return {part["id"]: part["response"] for event in events for part in event.function_responses()}


async def test_a_terminated_invocation_reads_as_ended_with_its_calls_closed(serve: Serve) -> None:
    """Termination runs no workflow code, but readers of the history see the end."""
    # Not verified, because a query replays the workflow only up to its last task, before the end.
    async with serve(asker(), verify=False) as env:
        invocation = await start_and_wait(env.client.start("asker", "ask"), "fc-1")
        await wait_until_quiet(invocation)
        await invocation.handle.terminate("by an operator")
        with pytest.raises(WorkflowFailureError) as caught:
            await invocation.result()
        assert isinstance(caught.value.cause, TerminatedError)
        assert await responses_in(invocation) == {"fc-1": sealed("ask")}
        log = await invocation.log()
        assert log.state.events[-1].error_code == "INVOCATION_TERMINATED"
        assert (log.state.pending(), await invocation.pending()) == ([], [])


async def test_cancelling_before_the_first_worker_ends_without_a_model_call(serve: Serve) -> None:
    """The first workflow task receives the start and the cancellation together."""
    agent = asker()
    async with serve(agent, verify=False) as env:
        queue = env.client.task_queue
    invocation = await env.client.start("asker", "ask")
    await invocation.cancel()
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        await cancelled(invocation)
        assert model_of(agent).requests == []


async def test_cancelling_during_a_retry_pause_ends_at_once(serve: Serve) -> None:
    """The invocation does not wait for the provider to recover."""
    model = ScriptedModel(ModelOverloaded("busy", retry_after_s=300), says("never said"))
    async with serve(Agent(name="asker", model=model)) as env:
        invocation = await env.client.start("asker", "ask")

        async def backing_off() -> bool:
            pending = (await invocation.handle.describe()).raw_description.pending_activities
            return [activity.attempt for activity in pending] == [2]

        await wait_until(backing_off, "the model call backing off")
        await invocation.cancel()
        await cancelled(invocation)
        assert len(model.requests) == 1


async def test_cancelling_closes_all_open_calls_in_call_order(serve: Serve) -> None:
    """A pending, a running and an answered call each have one response."""
    till, gate = Till(), Gate()

    async def slow() -> None:
        await gate.passed()

    model = ScriptedModel(calls(("pay", {"amount": 5}), ("slow", {}), ("ask", {}), ("look", {})))

    def look() -> str:
        return "seen"

    tools = [FunctionTool(till.pay, require_confirmation=True), slow, LongRunningFunctionTool(ask), look]
    async with serve(Agent(name="worker", model=model, tools=tools)) as env:
        invocation = await start_and_wait(env.client.start("worker", "work"), "fc-1", "fc-3")
        await gate.reached()

        async def looked() -> bool:
            return (await invocation.log()).state.calls["fc-4"].response is not None

        await wait_until(looked, "the end of the fourth call")
        await invocation.respond({"answer": 42}, "fc-3")
        await invocation.cancel()
        await cancelled(invocation)
        assert till.paid == []
        closed = await responses_in(invocation)
        assert closed == {
            "fc-1": sealed("pay"),
            "fc-2": {
                "error": "The call of `slow` was cancelled. Whether it took effect is unknown.",
                "error_type": "Cancelled",
            },
            "fc-3": {"answer": 42},
            "fc-4": {"result": "seen"},
        }
        assert [event.error_code for event in (await invocation.log()).state.events][-1] == "INVOCATION_CANCELLED"


async def test_a_tool_that_ignores_its_cancellation_delays_the_end_only_briefly(serve: Serve) -> None:
    """A tool that ignores its cancellation has an unknown outcome."""
    gate = Gate()

    async def stubborn() -> str:
        while True:
            try:
                await gate.passed()
                return "much later"
            except asyncio.CancelledError:
                continue

    model = ScriptedModel(calls(("stubborn", {})))
    async with serve(Agent(name="worker", model=model, tools=[stubborn])) as env:
        invocation = await env.client.start("worker", "work")
        await gate.reached()
        await invocation.cancel()
        try:
            async with asyncio.timeout(15):
                await cancelled(invocation)
            assert (await responses_in(invocation))["fc-1"]["error_type"] == "Cancelled"
        finally:
            gate.open()


async def test_cancelling_a_parent_closes_the_pending_calls_of_its_child(serve: Serve) -> None:
    """Parent and child read as cancelled, and the approver has no pending call any more."""
    till = Till()
    child = payer(till.pay, PAY)
    model = ScriptedModel(calls(("payer", {"request": "pay 5"})))
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(child)])) as env:
        invocation = await env.client.start("boss", "pay")
        called = env.client.invocation(f"{invocation.id}/fc-1")
        await wait_until(lambda: exists(called), "the child")
        await wait_for_calls(called, "fc-1")
        await invocation.cancel()
        await cancelled(invocation)
        await cancelled(called)
        assert await responses_in(called) == {"fc-1": sealed("pay")}
        assert await called.pending() == []
        assert till.paid == []


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_a_child_ended_from_outside_is_reported_to_the_parents_model(serve: Serve, how: str) -> None:
    """The parent continues and reads that its call has no result."""
    child = asker(ASK, name="helper")
    model = ScriptedModel(calls(("helper", {"request": "help"})), says("No help."))
    # A terminated child holds nothing that could be compared.
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(child)]), verify=how == "cancel") as env:
        invocation = await env.client.start("boss", "go")
        called = env.client.invocation(f"{invocation.id}/fc-1")
        await wait_until(lambda: exists(called), "the child")
        await wait_for_calls(called, "fc-1")
        await wait_until_quiet(called)
        await (called.cancel() if how == "cancel" else called.handle.terminate())
        assert (await invocation.result()).text == "No help."
        [response] = tool_responses(model.requests[1])
        assert response["error_type"] == ("Cancelled" if how == "cancel" else "TerminatedError")


async def test_a_call_of_an_agent_whose_id_is_taken_is_an_error(serve: Serve) -> None:
    """A foreign invocation with that ID is neither used nor disturbed."""
    helper = asker(ASK, says("Mine."), name="helper")
    model = ScriptedModel(calls(("helper", {"request": "help"})), says("No help."))
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(helper)]), helper, verify=False) as env:
        taken = await start_and_wait(env.client.start("helper", "mine", id="boss-1/fc-1"), "fc-1")
        assert (await env.client.run("boss", "go", id="boss-1")).text == "No help."
        assert tool_responses(model.requests[1])[0]["error_type"] == "WorkflowAlreadyStartedError"
        assert (await approve_and_finish(taken, "fc-1")).text == "Mine."


@pytest.mark.parametrize("channel", ["signal", "update"])
async def test_an_answer_after_the_end_is_refused_by_the_server(serve: Serve, channel: str) -> None:
    """The sender gets an error, and nothing changes."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay"), "fc-1")
        await approve_and_finish(invocation, "fc-1")
        before = len((await invocation.history()).events)
        answer = {"function_call_id": "fc-1", "action": "approve"}
        handle = invocation.handle
        late = (
            handle.signal("answer", answer) if channel == "signal" else handle.execute_update("submit_answer", answer)
        )
        with pytest.raises(RPCError, match="already completed"):
            await late
        assert (till.paid, len((await invocation.history()).events)) == ([5], before)


async def exists(invocation: Invocation) -> bool:
    """Return whether an invocation exists."""
    try:
        await invocation.handle.describe()
    except RPCError:
        return False
    return True
