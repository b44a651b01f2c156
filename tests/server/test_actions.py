"""How many billable actions of Temporal Cloud an invocation takes, counted by the server's own metric."""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.workflows.outside import LATE, until, waiting
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core import ActivitySettings, Settings, WorkflowSettings
from waystation.embedded import HOST, EmbeddedServer, _free_port
from waystation.models import LlmRequest
from waystation.models.function_model import Reply
from waystation.testing import FunctionModel, ScriptedModel, calls, says, serving
from waystation.tools.function_tool import FunctionTool

LATER_TASK = (
    "command_BatchMarkers",
    "command_ModifyWorkflowProperties",
    "command_UpsertWorkflowSearchAttributes",
)
"""If the results of parallel tools do not arrive together, the workflow has a command more for each later task."""
FEW_BEATS = replace(WorkflowSettings(), model=replace(WorkflowSettings().model, heartbeat=timedelta(seconds=6)))
"""A fifth of the default timeout, so that 1 s stands for 5 s."""


class MeteredServer(EmbeddedServer):
    """A server that counts actions."""

    metrics_port = 0

    def _arguments(self, port: int, ui_port: int | None) -> Iterator[str]:
        self.metrics_port = _free_port()
        yield from (*super()._arguments(port, ui_port), "--metrics-port", str(self.metrics_port))

    async def read_actions(self) -> Counter[str]:
        """Return how many actions of each kind the server has published, which it does every second."""
        async with httpx2.AsyncClient() as client:
            text = (await client.get(f"http://{HOST}:{self.metrics_port}/metrics")).text
        lines = re.findall(r'^action\{action_type="(\w+)",namespace="default".*\} (\d+)$', text, re.MULTILINE)
        return Counter({kind: int(count) for kind, count in lines})


@pytest.fixture(scope="module")
async def metered() -> AsyncIterator[MeteredServer]:
    """A server of its own, whose count nothing else changes."""
    async with MeteredServer() as server:
        yield server


class Unit:
    """Counts the actions of what the test does with an agent."""

    def __init__(self, server: MeteredServer, store: Path) -> None:
        self._server, self._store = server, store

    async def count(
        self, agent: Agent, *, settings: Settings = LATE, decide: bool = False, **options: Any
    ) -> Counter[str]:
        """Run an invocation, and return its actions."""
        env = serving(
            agent, server=self._server, store=self._store, settings=settings, max_cached_workflows=10, verify=False
        )
        async with env as served:
            mark = await served.temporal.start_workflow("Nothing", id=f"{uuid.uuid4()}", task_queue="nobody")

            async def published() -> Counter[str]:
                """Return the actions after the signal is among them, as are all that came before it."""
                before = (await self._server.read_actions())["grpc_SignalWorkflowExecution"]
                await mark.signal("mark")

                async def look() -> Counter[str]:
                    read = await self._server.read_actions()
                    return read if read["grpc_SignalWorkflowExecution"] > before else Counter()

                return await until(look, "the published actions")

            before = await published()
            invocation = await served.client.start(agent.name, "go", **options)
            if decide:
                await _approve(invocation)
            await invocation.result()
            return await published() - before - Counter({"grpc_SignalWorkflowExecution": 1})


async def _approve(invocation: Invocation) -> None:
    [call] = await waiting(invocation, "fc-1")
    await invocation.approve(call.function_call_id)


@pytest.fixture
def unit(metered: MeteredServer, payload_store: Path) -> Unit:
    """Count the actions of one invocation."""
    return Unit(metered, payload_store)


def look_up(place: int = 0) -> str:
    """Look up a place."""
    return f"It rains in {place}."


def agent_of(count: int, tools: Sequence[Any]) -> Agent:
    """Return an agent whose model calls the tool this many times in its first reply."""
    model = ScriptedModel(calls(*(("look_up", {"place": place}) for place in range(count))), says("It rains."))
    return Agent(name="weather", model=model, tools=list(tools))


@pytest.mark.parametrize(
    ("count", "tool", "actions"),
    [
        (1, FunctionTool(look_up), 4),
        (5, FunctionTool(look_up), 8),
        (5, FunctionTool(look_up, effect="read", quick=True), 4),
        (1, FunctionTool(look_up, require_confirmation=True), 9),
    ],
    ids=["one tool", "five tools", "five quick calls", "an approval"],
)
async def test_an_invocation_takes_few_actions(unit: Unit, count: int, tool: FunctionTool, actions: int) -> None:
    """The start, each activity, all quick calls together, and five for a call that waits for a person."""
    counted = await unit.count(agent_of(count, [tool]), decide=tool.require_confirmation is True)
    if tool.require_confirmation is False and not tool.quick:
        counted = Counter({kind: number for kind, number in counted.items() if kind not in LATER_TASK})
    assert counted.total() == actions, counted


async def test_a_model_call_of_5_s_sends_no_heartbeat(unit: Unit) -> None:
    """Heartbeats are a third of the timeout apart, and a call that is shorter sends none."""

    async def think(_: LlmRequest) -> Reply:
        await asyncio.sleep(1)
        return says("It rains.")

    settings = Settings(workflow=FEW_BEATS)
    counted = await unit.count(Agent(name="thinker", model=FunctionModel(think)), settings=settings)
    assert counted == {"grpc_StartWorkflowExecution": 1, "command_ScheduleActivityTask": 1}


@pytest.mark.parametrize(
    ("settings", "streaming"),
    [
        (Settings(), timedelta(seconds=0.2)),
        (Settings(activity=ActivitySettings(text_interval=timedelta(seconds=0.2))), True),
    ],
    ids=["of the invocation", "of the worker"],
)
async def test_streamed_text_takes_one_action_per_interval(
    unit: Unit, settings: Settings, streaming: bool | timedelta
) -> None:
    """The interval is a setting of the invocation, or else of the worker. The first piece is sent at once."""
    words = 100
    model = FunctionModel(lambda _: says(" ".join(["rain"] * words)), pace_s=0.01)
    counted = await unit.count(Agent(name="speaker", model=model), settings=settings, streaming=streaming)
    assert 1 < counted["grpc_RecordActivityTaskHeartbeat"] <= words / 4
