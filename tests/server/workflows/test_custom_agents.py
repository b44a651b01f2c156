"""Agents whose own code, the body, decides which sub-agent runs next. The body runs again after each sub-agent."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.trees import Relay
from tests.server.conftest import Serve, verify_tree
from tests.server.workflows.test_continuing import runs, start_with_cuts
from tests.steps import run
from waystation import Agent, ParallelAgent
from waystation.agents import BaseAgent
from waystation.agents.custom_agent import BodySegment
from waystation.core.contract import text_of
from waystation.testing import ScriptedModel, says


def relay(name: str = "relay", *, of: int = 2, **fields: Any) -> Relay:
    """Return an agent whose body runs sub-agents that report their own names."""
    names = [f"{name}_{number}" for number in range(of)]
    agents: list[BaseAgent] = [Agent(name=each, model=ScriptedModel(says(each))) for each in names]
    return Relay(name=name, sub_agents=agents, **fields)


def texts(segments: Sequence[BodySegment]) -> list[str]:
    """Return the texts of the segments' sub-agents."""
    return [text_of(event.content or {}) for segment in segments for event in segment.events]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the store of the workers and of the client."""
    monkeypatch.setenv("WAYSTATION_STORE", str(tmp_path / "store"))


async def test_a_body_receives_the_events_of_earlier_runs_of_the_workflow(serve: Serve) -> None:
    """The invocation continues as new between sub-agents, and its last run may have no event."""
    agent = relay(of=4, ends_silently=True)
    async with serve(agent, verify=verify_tree) as env:
        invocation = await start_with_cuts(env, "relay", app=f"relay-{uuid.uuid4().hex}")
        assert (await invocation.result()).text == "relay_3"
        assert await runs(invocation) > 1
    assert texts(agent.given) == [f"relay_{number}" for number in range(4)]
    assert [segment.state.get("relay", 0) for segment in agent.given] == list(range(5))
    assert [len(segment.yielded) for segment in agent.given] == [1] * 4 + [0]


async def test_a_body_that_runs_again_saves_its_artifacts_once(serve: Serve) -> None:
    """The first segment's artifact is saved by each run of the body, and has one version."""
    name = f"artifacts-{uuid.uuid4().hex}"
    async with serve(relay()) as env:
        await env.client.run("relay", "go", app=name, session_id="s")
        artifacts = env.services.artifacts
        assert artifacts is not None
        versions = await artifacts.list_versions(app_name=name, user_id="user", session_id="s", filename="relay.txt")
    assert versions == [0, 1, 2]


async def test_a_body_changes_the_state_of_users_and_apps(serve: Serve) -> None:
    """Events of a body are flushed like those of other agents, and the next invocation begins with the state."""
    name, agent = f"scopes-{uuid.uuid4().hex}", relay()
    async with serve(agent) as env:
        await env.client.run("relay", "go", app=name, user_id="ann")
        assert await env.client.user_state(app=name, user_id="ann") == {"user:relay": 3}
        assert await env.client.app_state(app=name) == {"app:relay": 3}
        await env.client.run("relay", "go", app=name, user_id="ann")
        assert agent.given[0].state == {"user:relay": 3, "app:relay": 3}
        assert agent.given[1].state == {"user:relay": 1, "app:relay": 1, "relay": 1}


async def test_bodies_of_a_parallel_agent_run_at_the_same_time(serve: Serve) -> None:
    """Each body receives the events of its own sub-agents, and not those of the other body."""
    bodies = relay("left"), relay("right")
    state = (
        await run(
            serve(ParallelAgent(name="both", sub_agents=list(bodies))), "both", "go", app=f"both-{uuid.uuid4().hex}"
        )
    ).state_delta
    assert (state["left"], state["right"]) == (3, 3)
    for body in bodies:
        assert texts(body.given) == [f"{body.name}_0", f"{body.name}_1"]
