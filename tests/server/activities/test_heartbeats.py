"""A tool never counts as lost while its worker lives, whatever the tool does."""

import asyncio
import itertools
import time
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError

from tests.agents import Gate
from tests.server.conftest import Serve
from tests.steps import LIMIT_S, run, wait_until
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

SHORT = timedelta(seconds=1)


async def test_a_tool_may_take_longer_than_its_heartbeat_timeout(serve: Serve) -> None:
    """The engine sends heartbeats for a tool that sends none."""

    def compute() -> str:
        """Take a while."""
        time.sleep(2 * SHORT.total_seconds())
        return "computed"

    model = ScriptedModel(calls(("compute", {})), says("done"))
    tool = FunctionTool(compute, heartbeat_timeout=SHORT, effect="once")
    await run(serve(Agent(name="patient", model=model, tools=[tool])), "patient", "go")
    assert responses(model.requests[-1]) == [("compute", {"result": "computed"})]


@pytest.mark.slow
async def test_a_tool_that_waits_for_its_next_try_is_alive(serve: Serve) -> None:
    """The pause before a retry of a call with effect `once` may exceed the heartbeat timeout."""
    tries = itertools.count(1)

    def flaky() -> str:
        """Fail twice."""
        number = next(tries)
        if number < 3:
            raise ConnectionError("not yet")
        return f"try {number}"

    model = ScriptedModel(calls(("flaky", {})), says("done"))
    tool = FunctionTool(flaky, heartbeat_timeout=SHORT, effect="once", retries=2)
    await run(serve(Agent(name="patient", model=model, tools=[tool])), "patient", "go")
    assert responses(model.requests[-1]) == [("flaky", {"result": "try 3"})]


async def test_what_a_tool_tells_stays_while_the_engine_beats(serve: Serve) -> None:
    """The engine's own heartbeats repeat the tool's details, so the next attempt always finds them."""
    gate = Gate()

    async def copy(tool_context: ToolContext) -> str:
        """Copy half of it."""
        tool_context.heartbeat("half")
        await gate.passed()
        return "copied"

    model = ScriptedModel(calls(("copy", {})), says("done"))
    async with serve(Agent(name="copier", model=model, tools=[FunctionTool(copy)])) as env:
        invocation = await env.client.start("copier", "go")
        seen: dict[int, list[bytes]] = {}

        async def beaten_twice() -> bool:
            described = await invocation.handle.describe()
            for each in described.raw_description.pending_activities:
                if each.HasField("last_heartbeat_time") and each.heartbeat_details.payloads:
                    moment = each.last_heartbeat_time.ToNanoseconds()
                    seen[moment] = [payload.data for payload in each.heartbeat_details.payloads]
            return len(seen) > 1

        await wait_until(beaten_twice, "two heartbeats with something in them")
        gate.open()
        await invocation.result()
    assert list(seen.values()) == [[b'"half"']] * len(seen)


async def test_a_cancellation_arrives_as_soon_as_the_tool_needs_it(serve: Serve) -> None:
    """The SDK would find it after 10 min. The server records a cancellation, not a failure."""
    cleaned = asyncio.Event()

    async def linger() -> None:
        """Linger."""
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    tool = FunctionTool(linger, heartbeat_timeout=timedelta(minutes=10), cancel_within=timedelta(seconds=0.1))
    async with serve(Agent(name="patient", model=ScriptedModel(calls(("linger", {}))), tools=[tool])) as env:
        invocation = await env.client.start("patient", "go")

        async def beaten() -> bool:
            pending = (await invocation.handle.describe()).raw_description.pending_activities
            return any(each.HasField("last_heartbeat_time") for each in pending)

        await wait_until(beaten, "the SDK's heartbeat")
        await invocation.cancel()
        await asyncio.wait_for(cleaned.wait(), LIMIT_S)
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        kinds = [event.event_type for event in (await invocation.history()).events]
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED in kinds
