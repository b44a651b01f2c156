"""A tool that never returns is reported to the model, its side effect is not repeated, and the invocation continues."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import PauseActivityRequest, ResetActivityRequest, UnpauseActivityRequest
from temporalio.service import RPCError

from tests.agents import Gate
from tests.server.conftest import Serve, verify_tree
from tests.steps import LIMIT_S, tool_responses
from waystation.agents import Agent
from waystation.core.contract import Settings, WorkflowSettings
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext

SOON = timedelta(seconds=0.3)


def timed_out(tool: str) -> JsonObject:
    """Return the response for a tool that took too long."""
    return {
        "error": f"`{tool}` was stopped after 0.3 s. Whether it took effect is unknown; it was not repeated.",
        "error_type": "Timeout",
    }


def slow(function: Callable[..., Any], **settings: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent whose tool has 0.3 s, and its model."""
    model = ScriptedModel(calls(("work", {})), says("It took too long."))
    tool = FunctionTool(function, timeout=SOON, **settings)
    return Agent(name="worker", model=model, tools=[tool]), model


async def test_a_call_that_loses_all_its_workers_is_reported_with_its_attempts(serve: Serve) -> None:
    """The limit of attempts is a setting of the worker; the model learns how often the call was tried."""

    def lose_worker(**_: Any) -> None:
        activity.raise_complete_async()  # from now on, nobody sends heartbeats or a result

    def work() -> None:
        """Work."""

    model = ScriptedModel(calls(("work", {})), says("It is unknown."))
    tool = FunctionTool(work, heartbeat_timeout=timedelta(seconds=0.5))
    agent = Agent(name="worker", model=model, tools=[tool], before_tool_callback=lose_worker)
    tool_settings = replace(WorkflowSettings().tool, lost_worker_attempts=1)
    settings = Settings(workflow=WorkflowSettings(tool=tool_settings))
    async with serve(agent, settings=settings, verify=False) as env:
        invocation = await env.client.start("worker", "work")
        assert (await invocation.result()).text == "It is unknown."
        [response] = tool_responses(model.requests[1])
        await verify_tree(invocation, settings.workflow)
    assert response == {
        "error": "The worker running `work` was lost before it reported a result. Whether the call took effect is "
        "unknown; it was tried 2 times and is not repeated again.",
        "error_type": "OutcomeUnknown",
    }


@pytest.mark.parametrize("operation", ["paused", "reset"])
async def test_a_call_that_an_operator_stops_is_not_repeated(serve: Serve, operation: str) -> None:
    """The server would run an activity again after it was paused, however often it may be tried."""
    effects: list[str] = []
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        effects.append("began")
        began.set()
        try:
            await (asyncio.sleep(0) if ended.is_set() else asyncio.Event().wait())
        finally:
            ended.set()

    model = ScriptedModel(calls(("work", {})), says("It is unknown."))
    tool = FunctionTool(work, effect="once", heartbeat_timeout=timedelta(seconds=1))
    async with serve(Agent(name="worker", model=model, tools=[tool])) as env:
        invocation = await env.client.start("worker", "work")
        await began.wait()
        service, call = env.temporal.workflow_service, cast(Any, {"namespace": env.temporal.namespace, "id": "fc-1"})
        execution = WorkflowExecution(workflow_id=invocation.id)
        if operation == "reset":
            await service.reset_activity(ResetActivityRequest(**call, execution=execution))
        else:
            await service.pause_activity(PauseActivityRequest(**call, execution=execution))
            await ended.wait()
            with suppress(RPCError):  # the activity has already ended
                await service.unpause_activity(UnpauseActivityRequest(**call, execution=execution))
        assert (await invocation.result()).text == "It is unknown."
    assert (effects, tool_responses(model.requests[1])) == (
        ["began"],
        [
            {
                "error": f"The activity was {operation} while `work` ran. Whether it took effect is unknown; it was "
                "not repeated.",
                "error_type": "OutcomeUnknown",
            }
        ],
    )


async def test_an_async_tool_that_never_returns_is_cancelled(serve: Serve) -> None:
    """The tool receives a CancelledError and can clean up."""
    effects: list[str] = []

    async def work() -> None:
        effects.append("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            effects.append("cancelled")
            raise

    agent, model = slow(work)
    async with serve(agent) as env:
        assert (await env.client.run("worker", "work")).text == "It took too long."
        assert tool_responses(model.requests[1]) == [timed_out("work")]
        assert effects == ["began", "cancelled"]


async def test_a_tool_that_ignores_its_cancellation_is_abandoned(serve: Serve) -> None:
    """The invocation does not wait for the tool, and its later result is ignored."""
    effects: list[str] = []
    gate = Gate()

    async def work() -> str:
        effects.append("began")
        while True:
            try:
                await gate.passed()
                return "much later"
            except asyncio.CancelledError:
                effects.append("swallowed")

    agent, model = slow(work)
    async with serve(agent) as env:
        try:
            assert (await env.client.run("worker", "work")).text == "It took too long."
            assert tool_responses(model.requests[1]) == [timed_out("work")]
            assert effects == ["began", "swallowed"]
        finally:
            gate.open()


async def test_a_sync_tool_that_never_returns_is_signalled_and_abandoned(serve: Serve) -> None:
    """A thread cannot be cancelled, but a tool that checks `is_aborted` ends."""
    effects: list[str] = []
    saw_it = threading.Event()

    def work(tool_context: ToolContext) -> None:
        effects.append("began")
        while not tool_context.is_aborted:
            saw_it.wait(0.01)
        saw_it.set()

    agent, model = slow(work)
    async with serve(agent) as env:
        assert (await env.client.run("worker", "work")).text == "It took too long."
        assert tool_responses(model.requests[1]) == [timed_out("work")]
        assert effects == ["began"]
        assert await asyncio.to_thread(saw_it.wait, LIMIT_S)


async def test_a_timeout_is_not_retried(serve: Serve) -> None:
    """`retries` is for exceptions; after a timeout the effect is unknown."""
    effects: list[str] = []

    async def work() -> None:
        effects.append("began")
        await asyncio.Event().wait()

    agent, model = slow(work, retries=3)
    async with serve(agent) as env:
        await env.client.run("worker", "work")
        assert effects == ["began"]
        assert tool_responses(model.requests[1]) == [timed_out("work")]


async def test_a_long_running_function_that_never_returns_is_reported_and_closed(serve: Serve) -> None:
    """It is unknown whether the function sent its request."""

    async def work() -> None:
        await asyncio.Event().wait()

    model = ScriptedModel(calls(("work", {})), says("It took too long."))
    agent = Agent(name="worker", model=model, tools=[LongRunningFunctionTool(work, timeout=SOON)])
    async with serve(agent) as env:
        assert (await env.client.run("worker", "work")).text == "It took too long."
        assert tool_responses(model.requests[1]) == [timed_out("work")]


async def test_a_sibling_of_a_tool_that_never_returns_is_reported_with_it(serve: Serve) -> None:
    """The batch continues after the timeout, with the responses in call order."""

    async def work() -> None:
        await asyncio.Event().wait()

    def quick() -> str:
        return "quick"

    model = ScriptedModel(calls(("work", {}), ("quick", {})), says("Done."))
    agent = Agent(name="worker", model=model, tools=[FunctionTool(work, timeout=SOON), quick])
    async with serve(agent) as env:
        await env.client.run("worker", "work")
        assert tool_responses(model.requests[1]) == [timed_out("work"), {"result": "quick"}]


@pytest.mark.parametrize("raised", [ValueError("while cleaning up"), SystemExit(1)])
async def test_an_exception_of_a_stopped_tool_does_no_harm(serve: Serve, raised: BaseException) -> None:
    """The timeout is reported, and the worker continues."""

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise raised

    agent, model = slow(work)
    async with serve(agent) as env:
        assert (await env.client.run("worker", "work")).text == "It took too long."
        assert tool_responses(model.requests[1]) == [timed_out("work")]


async def test_a_tool_that_blocks_its_thread_does_not_delay_others(serve: Serve) -> None:
    """Sync tools run in separate threads: two that wait for each other both finish."""
    first, second = threading.Event(), threading.Event()

    def one() -> bool:
        first.set()
        return second.wait(LIMIT_S)

    def other() -> bool:
        second.set()
        return first.wait(LIMIT_S)

    model = ScriptedModel(calls(("one", {}), ("other", {})), says("Done."))
    async with serve(Agent(name="worker", model=model, tools=[one, other])) as env:
        await env.client.run("worker", "work")
        assert tool_responses(model.requests[1]) == [{"result": True}, {"result": True}]
