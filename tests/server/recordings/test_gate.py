"""Before a deployment, verify whether a build and its agents can continue all open workflows."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import empty_server
from tests.steps import wait_for_calls, wait_until
from waystation.agents import Agent
from waystation.core.contract import Settings, WorkflowSettings
from waystation.embedded import EmbeddedServer
from waystation.replay import gate
from waystation.replay.deployment_gate import OPEN
from waystation.testing import AgentEnvironment, ScriptedModel, calls
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

AGENT = '''
from waystation import Agent, FunctionTool, LongRunningFunctionTool


def pay(amount: int, to: str = "dana") -> dict:
    """Pay somebody."""
    return {"paid": amount}


def ask(what: str) -> dict:
    """Ask somebody."""
    return {"asked": what}


root_agent = Agent(
    name="clerk",
    model="gemini-3.5-flash",
    instruction="Pay.",
    tools=[FunctionTool(pay, require_confirmation=True), LongRunningFunctionTool(ask)],
)
'''


def pay(amount: int, to: str = "dana") -> dict[str, Any]:
    """Pay a person."""
    return {"paid": amount}


def ask(what: str) -> dict[str, Any]:
    """Ask a person."""
    return {"asked": what}


def clerk(*replies: Any) -> Agent:
    """Return the deployed agent."""
    tools = [FunctionTool(pay, require_confirmation=True), LongRunningFunctionTool(ask)]
    return Agent(name="clerk", model=ScriptedModel(*replies), tools=tools)


PAYS = calls(("pay", {"amount": 200}))


@pytest.fixture
async def own_server() -> AsyncIterator[EmbeddedServer]:
    """Run a server without workflows of other tests."""
    async with empty_server() as server:
        yield server


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """Return the folder of the agents to deploy."""
    (tmp_path / "agents" / "clerk").mkdir(parents=True)
    deployed(tmp_path / "agents", AGENT)
    return tmp_path / "agents"


def deployed(agents: Path, text: str) -> None:
    """Change the agent to deploy."""
    (agents / "clerk" / "agent.py").write_text(text)


async def listed(env: AgentEnvironment, *ids: str) -> None:
    """Wait until visibility lists exactly these open workflows that the gate checks."""

    async def look() -> bool:
        return {run.id async for run in env.temporal.list_workflows(OPEN)} == set(ids)

    await wait_until(look, f"{ids} open")


async def parked(env: AgentEnvironment, *ids: str) -> None:
    """Start invocations and wait until they are pending."""
    for id in ids:
        await wait_for_calls(await env.client.start("clerk", "pay dana 200", id=id), "fc-1")
    await listed(env, *ids)


async def talking(env: AgentEnvironment) -> list[str]:
    """Start a session and wait until it is pending; return its workflows."""
    session = env.client.session(session_id="talk", agent="clerk")
    sent = await session.send("pay dana 200")
    await wait_for_calls(await sent.invocation(), "fc-1")
    return [session.id, sent.id]


async def misfit(server: EmbeddedServer, agents: Path, *replies: Any) -> dict[str, Any]:
    """Return the only misfit of a pending invocation."""
    async with AgentEnvironment(clerk(*replies), server=server) as env:
        await parked(env, "one")
        report = await gate(env.client, agents=[agents], processes=1)
    assert (report.passes, dict(report.counts)) == (False, {"misfit": 1})
    [finding] = report.findings
    [lacks] = finding.misfits
    assert finding.problem == lacks["problem"]
    return lacks


async def test_open_workflows_replay(own_server: EmbeddedServer, agents: Path) -> None:
    """Open invocations, sessions and scopes replay, and their current agents have no misfits."""
    progress: list[tuple[int, int]] = []
    async with AgentEnvironment(clerk(PAYS, PAYS), server=own_server) as env:
        await parked(env, "one")
        await listed(env, "one", *await talking(env))
        report = await gate(
            env.client,
            agents=[agents],
            processes=2,
            progress=lambda found, total: progress.append((found.checked, total)),
        )
    assert (report.passes, report.tools_checked, dict(report.counts)) == (True, True, {"replays": 3})
    assert progress == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
async def test_a_breaking_change_is_found(own_server: EmbeddedServer) -> None:
    """A divergence is described as by `waystation replay`, and the other workflows are checked nevertheless."""
    async with AgentEnvironment(clerk(PAYS), server=own_server) as env:
        await parked(env, "good")
        defaults = WorkflowSettings()
        slow = replace(defaults, model=replace(defaults.model, start_to_close=timedelta(minutes=9)))
        other = AgentEnvironment(clerk(PAYS), server=own_server, task_queue="other", settings=Settings(workflow=slow))
        async with other:
            await wait_for_calls(await other.client.start("clerk", "pay dana 200", id="bad"), "fc-1")
        await listed(env, "good", "bad")
        report = await gate(env.client, processes=1)
    assert (report.passes, dict(report.counts)) == (False, {"replays": 1, "differs": 1})
    [finding] = report.findings
    assert (finding.id, finding.kind, finding.verdict) == ("bad", "AgentInvocation", "differs")
    assert finding.problem.startswith("recorded: model call 1 of clerk, with start_to_close_timeout 540.0")
    assert finding.divergence is not None
    assert finding.divergence["now"] == "the same with 600.0"


@pytest.mark.slow
async def test_a_removed_tool_of_a_pending_call_is_found(own_server: EmbeddedServer, agents: Path) -> None:
    """A removed tool is found, because the call could not run after an approval."""
    deployed(agents, AGENT.replace("FunctionTool(pay, require_confirmation=True), ", ""))
    lacks = await misfit(own_server, agents, PAYS)
    assert lacks == {
        "reason": "tool_gone",
        "problem": "Tool 'pay' of agent 'clerk' is gone.",
        "agent": "clerk",
        "tool": "pay",
        "function_call_id": "fc-1",
    }


TROUBLE = """
import os
import threading
from waystation.replay import compatibility_check

taken = compatibility_check._read_request


def troubled(requests):
    history = taken(requests)
    if history and history.workflow_id == "hangs":
        threading.Event().wait()
    if history and history.workflow_id == "crashes":
        os.write(2, b"out of memory")
        os._exit(9)
    return history


compatibility_check._read_request = troubled
compatibility_check.main()
"""
