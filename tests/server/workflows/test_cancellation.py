"""Cancelling an invocation closes pending calls and notifies running tools."""

import asyncio
import threading

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


async def until_waiting(invocation: Invocation) -> None:
    """Wait until something waits for a person."""
    async with asyncio.timeout(20):
        while not await invocation.pending():
            await asyncio.sleep(0.02)


async def ended(invocation: Invocation) -> list[JsonObject]:
    """Wait for the cancelled end; return every response in the events."""
    with pytest.raises(WorkflowFailureError) as raised:
        await invocation.result()
    assert isinstance(raised.value.cause, CancelledError)
    assert (await invocation.handle.describe()).status is WorkflowExecutionStatus.CANCELED
    log = await invocation.log()
    assert log.state.events[-1].error_code == "INVOCATION_CANCELLED"
    return [part["response"] for event in log.state.events for part in event.function_responses()]


async def test_a_running_async_tool_is_cancelled(serve: Serve) -> None:
    """A running async tool receives CancelledError and can clean up."""
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def linger() -> None:
        """Run until cancelled."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with serve(Agent(name="ag", model=ScriptedModel(calls(("linger", {}))), tools=[linger])) as env:
        invocation = await env.client.start("ag", "go")
        await asyncio.wait_for(started.wait(), 20)
        await invocation.cancel()
        assert await ended(invocation) == [
            {
                "error": "The call of `linger` was cancelled. Whether it took effect is unknown.",
                "error_type": "Cancelled",
            }
        ]
    assert cleaned.is_set()


async def test_a_running_sync_tool_is_told(serve: Serve) -> None:
    """A sync tool reads `is_aborted`, because a thread cannot be stopped."""
    started, told = threading.Event(), threading.Event()

    def linger(tool_context: ToolContext) -> None:
        """Run until told."""
        started.set()
        pause = threading.Event()
        while not tool_context.is_aborted:
            pause.wait(0.01)
        told.set()

    async with serve(Agent(name="ag", model=ScriptedModel(calls(("linger", {}))), tools=[linger])) as env:
        invocation = await env.client.start("ag", "go")
        assert await asyncio.to_thread(started.wait, 20)
        await invocation.cancel()
        await ended(invocation)
        assert await asyncio.to_thread(told.wait, 20)


async def test_a_tool_that_finishes_all_the_same_is_recorded_as_finished(serve: Serve) -> None:
    """A finished call is not reported as unknown."""
    started = asyncio.Event()

    async def stubborn() -> str:
        """Finish, whatever happens."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done"
        return "never"

    async with serve(Agent(name="ag", model=ScriptedModel(calls(("stubborn", {}))), tools=[stubborn])) as env:
        invocation = await env.client.start("ag", "go")
        await asyncio.wait_for(started.wait(), 20)
        await invocation.cancel()
        assert await ended(invocation) == [{"result": "done"}]


async def test_a_model_call_is_given_up(serve: Serve) -> None:
    """The invocation ends without the reply."""
    asked = asyncio.Event()

    async def never(_request: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    async with serve(Agent(name="ag", model=FunctionModel(never))) as env:
        invocation = await env.client.start("ag", "go")
        await asyncio.wait_for(asked.wait(), 20)
        await invocation.cancel()
        assert await ended(invocation) == []


@pytest.mark.parametrize("order", ["cancel first", "approval first"])
async def test_cancelling_beats_an_approval_in_the_same_task(serve: Serve, order: str) -> None:
    """With the worker down both are delivered together; the tool never runs."""
    paid: list[int] = []

    def spend(amount: int) -> str:
        """Spend."""
        paid.append(amount)
        return "spent"

    model = ScriptedModel(calls(("spend", {"amount": 5})), says("never said"))
    agent = Agent(name="ag", model=model, tools=[FunctionTool(spend, require_confirmation=True)])
    queue = f"cancel-{order.replace(' ', '-')}"
    async with serve(agent, task_queue=queue, verify=False) as env:
        invocation = await env.client.start("ag", "go")
        await until_waiting(invocation)
    # No worker now; the client still works.
    if order == "cancel first":
        await invocation.cancel()
    await invocation.answer("approve", "fc-1", signal=True)
    if order == "approval first":
        await invocation.cancel()
    async with AgentEnvironment(agent, server=env.server, task_queue=queue):
        await ended(invocation)
    assert paid == []
