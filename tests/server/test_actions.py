"""How many billable actions of Temporal Cloud an invocation takes, counted by the server's own metric."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from temporalio.client import WorkflowHandle

from benchmarks.actions import read_actions
from tests.steps import PATIENT_SETTINGS, wait_for_calls, wait_until
from waystation.agents import Agent
from waystation.core.contract import ActivitySettings, Settings, WorkflowSettings
from waystation.embedded import EmbeddedServer
from waystation.models import LlmRequest
from waystation.models.function_model import Reply
from waystation.testing import FunctionModel, ScriptedModel, calls, says, serving
from waystation.tools.function_tool import FunctionTool

Count: TypeAlias = Callable[..., Awaitable[Counter[str]]]
LATER_TASKS = ("BatchMarkers", "ModifyWorkflowProperties", "UpsertWorkflowSearchAttributes")
"""If the results of parallel tools do not arrive together, the workflow has one more command for each later task."""
BEATS = replace(WorkflowSettings(), model=replace(WorkflowSettings().model, heartbeat=timedelta(seconds=9)))
"""With this part of the default heartbeat timeout, 1.5 s stands for 5 s."""


async def read_marked(server: EmbeddedServer, marked: WorkflowHandle[Any, Any], marks: int) -> Counter[str]:
    """Return all actions so far, without the marks. The server publishes them once a second, a last mark last."""
    await marked.signal("mark")

    async def look() -> Counter[str]:
        counted = await read_actions(server)
        return counted if counted.pop("SignalWorkflowExecution", 0) >= marks else Counter()

    return await wait_until(look, "the published actions")


@pytest.fixture
async def count(payload_store: Path) -> AsyncIterator[Count]:
    """Run an invocation on a server of its own, and return its actions."""
    async with EmbeddedServer(metrics=True) as server:

        async def count(
            agent: Agent, *, settings: Settings = PATIENT_SETTINGS, decide: bool = False, **options: Any
        ) -> Counter[str]:
            options_of_worker: dict[str, Any] = {"settings": settings, "max_cached_workflows": 10, "verify": False}
            async with serving(agent, server=server, store=payload_store, **options_of_worker) as env:
                marked = await env.temporal.start_workflow("Nothing", id=f"{uuid.uuid4()}", task_queue="nobody")
                before = await read_marked(server, marked, 1)
                invocation = await env.client.start(agent.name, "go", **options)
                for call in await wait_for_calls(invocation, "fc-1") if decide else ():
                    await invocation.approve(call.function_call_id)
                await invocation.result()
                return await read_marked(server, marked, 2) - before

        yield count


def look_up(place: int = 0) -> str:
    """Look up a place."""
    return f"It rains in {place}."


@pytest.mark.parametrize(
    ("number", "tool", "actions"),
    [
        pytest.param(1, FunctionTool(look_up), 4, id="one tool"),
        pytest.param(5, FunctionTool(look_up), 8, id="five tools"),
        pytest.param(5, FunctionTool(look_up, effect="read", quick=True), 4, id="five quick calls"),
        pytest.param(1, FunctionTool(look_up, require_confirmation=True), 9, id="an approval"),
    ],
)
async def test_an_invocation_takes_few_actions(count: Count, number: int, tool: FunctionTool, actions: int) -> None:
    """The start, each activity, all quick calls together, and five for a call that waits for a person."""
    decide = tool.require_confirmation is True
    model = ScriptedModel(calls(*[("look_up", {"place": place}) for place in range(number)]), says("It rains."))
    counted = await count(Agent(name="weather", model=model, tools=[tool]), decide=decide)
    left_out = () if decide or tool.quick else LATER_TASKS
    assert sum(times for kind, times in counted.items() if kind not in left_out) == actions, counted


@pytest.mark.slow
async def test_a_model_call_of_5_s_sends_no_heartbeat(count: Count) -> None:
    """Heartbeats are a third of the timeout apart, and a call that is shorter sends none."""

    async def think(_: LlmRequest) -> Reply:
        await asyncio.sleep(1.5)
        return says("It rains.")

    counted = await count(Agent(name="thinker", model=FunctionModel(think)), settings=Settings(workflow=BEATS))
    assert counted == {"StartWorkflowExecution": 1, "ScheduleActivityTask": 1}


@pytest.mark.slow
@pytest.mark.parametrize("of_worker", [True, False])
async def test_streamed_text_takes_one_action_per_interval(count: Count, of_worker: bool) -> None:
    """The interval is a setting of the invocation, or else of the worker. The first piece is sent at once."""
    interval, words = timedelta(seconds=0.2), 100
    settings = Settings(activity=ActivitySettings(text_interval=interval if of_worker else timedelta(minutes=1)))
    agent = Agent(name="speaker", model=FunctionModel(lambda _: says("rain " * words), pace_s=0.01))
    counted = await count(agent, settings=settings, streaming=of_worker or interval)
    assert 1 < counted["RecordActivityTaskHeartbeat"] <= words / 4
