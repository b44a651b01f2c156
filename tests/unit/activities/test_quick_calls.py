"""A local activity declines a call that it cannot run, without delay, so that an ordinary activity runs it."""

from dataclasses import replace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from tests.paths import HISTORIES
from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.history import ActivityAttempts, collect_attempts
from waystation.replay import Recording
from waystation.replay.activity_replay import Workshop, find_tool_call
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool


async def run_locally(agent: Agent) -> Any:
    """Run a recorded quick call as a local activity in a worker that serves only this agent."""
    step = find_tool_call(await Recording.read(HISTORIES / "quick-tools.json"), "fc-1")
    return await Workshop(Registry.of(agent)).call_tool(replace(step, scheduled={"is_local": True}))


def glance(place: str) -> str:
    """Glance at a place."""
    return place


def stare(place: str) -> str:
    """Glance at a place for a long time."""
    return place * 10_000


stare.__name__ = "glance"


class Nothing(BaseToolset):
    """A toolset without tools. With a toolset, an unknown tool name may be valid or invented by the model."""

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        """See `BaseToolset`."""
        return []


class Away(BaseToolset):
    """A toolset that is available a second later. Ordinary activities wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._tools = iter([[], [glance]])

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        """See `BaseToolset`."""
        if tools := next(self._tools):
            return [FunctionTool(tool) for tool in tools]
        raise OSError("away")


@pytest.mark.parametrize(
    "agent",
    [
        Agent(name="other", tools=[glance]),
        Agent(name="clerk", tools=[]),
        Agent(name="clerk", tools=[Nothing()]),
        Agent(name="clerk", tools=[Away()]),
        Agent(name="clerk", tools=[stare]),
    ],
    ids=["no agent", "no tool", "no tool in the toolset", "toolset away", "large result"],
)
async def test_a_call_that_cannot_run_locally_is_declined(agent: Agent) -> None:
    """The failure names no hold, because the ordinary activity decides whether the call is held."""
    with pytest.raises(ApplicationError) as caught:
        await run_locally(agent)
    assert (caught.value.type, caught.value.details) == ("Declined", ())


async def test_a_call_that_can_run_locally_has_its_usual_result() -> None:
    """Records the result of a local activity like that of an ordinary one."""
    outcome = await run_locally(Agent(name="clerk", tools=[glance]))
    assert outcome.response == {"result": "door"}


async def test_attempts_include_local_activities() -> None:
    """The ordinary activity of a call counts as the next attempt after a failed local one."""
    attempts = collect_attempts((await Recording.read(HISTORIES / "quick-tools.json")).histories)

    def of(call: str) -> list[ActivityAttempts]:
        return [attempt for attempt in attempts if attempt.activity == call]

    [quick] = of("fc-1")
    assert (quick.type, quick.count, quick.failure) == ("clerk.glance", 1, None)
    assert quick.ended
    assert quick.started
    assert 0 < quick.ended - quick.started < 1
    failed, ordinary = of("fc-3")
    assert failed.failure
    assert (failed.failure.error_type, failed.lost) == ("OSError", False)
    assert (ordinary.count, ordinary.failure) == (1, None)
