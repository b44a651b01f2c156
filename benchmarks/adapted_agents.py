"""Measure agents of google-adk that run through the adapter, compared with Waystation's own classes.

It needs the environment that has google-adk: `.venv-adk/bin/python -m benchmarks adapted`. Elsewhere, it has no rows.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.comparison import Plan, in_turns
from benchmarks.table import Row, ratio
from waystation import agents, tools
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment
from waystation.version import find_adk_problem

INVOCATIONS = 5
"""The number of invocations of one sample."""
AGENT = """
def look() -> str: return ""

root_agent = Agent(name="clerk", tools=[look])
"""
IMPORTS = {
    "own": "from waystation.agents import Agent",
    "own beside google-adk": "from google.adk.agents import Agent as AdkAgent\nfrom waystation.agents import Agent",
    "adapted": "from google.adk.agents import Agent",
}
"""The import statements of the agent in each folder."""


class _TwoCalls(BaseLlm):
    """Calls a tool twice at once, and then replies."""

    model = "two-calls"

    async def generate(self, request: LlmRequest, *, on_text: Any = None) -> LlmResponse:
        """Return the next reply."""
        if any("functionResponse" in part for part in request.contents[-1]["parts"]):
            return LlmResponse(content={"role": "model", "parts": [{"text": "done"}]})
        calls = [{"functionCall": {"name": "add", "args": {"amount": amount}}} for amount in (1, 2)]
        return LlmResponse(content={"role": "model", "parts": calls})


def _create_agent(agent: Any, name: str, context: Any) -> Any:
    """Return an agent of either package, with a tool and callbacks that use the context."""

    def add(amount: int, tool_context: context) -> dict[str, int]:
        """Add to the total."""
        tool_context.state["total"] = tool_context.state.get("total", 0) + amount
        return {"total": tool_context.state["total"]}

    def enter(callback_context: Any) -> None:
        callback_context.state["entered"] = True

    return agent(name=name, instruction="Add.", tools=[add], before_agent_callback=enter)


async def measure(plan: Plan) -> list[Row]:
    """Measure the CPU time of client and worker, which are in this process, for both agents in turns."""
    if problem := find_adk_problem():
        plan.report_progress(problem)
        return []
    from google import adk

    from waystation.adk import from_adk

    adapted: Any = from_adk(_create_agent(adk.Agent, "adapted", adk.tools.ToolContext))
    own = _create_agent(agents.Agent, "own", tools.ToolContext)
    own.model = adapted.model = _TwoCalls()
    async with AgentEnvironment(own, adapted, max_cached_workflows=100) as environment:

        async def run(name: str) -> float:
            started = time.process_time()
            for _ in range(INVOCATIONS):
                await (await environment.client.start(name, "go")).result()
            return (time.process_time() - started) / INVOCATIONS * 1000

        used = await in_turns(["own", "adapted"], plan.pairs, run, warm_up=1)
    row = ratio("CPU time of an adapted agent", used["own"], used["adapted"], goal=1.3, unit_of_sides="ms")
    return [row, *_measure_start(plan)]


def _measure_start(plan: Plan) -> list[Row]:
    """Measure how much more CPU time a worker takes to import and check an adapted agent.

    Most of it is the import of google-adk, which a program with such agents pays anyway.
    """
    seconds: dict[str, list[float]] = {folder: [] for folder in IMPORTS}
    for folder, imports in IMPORTS.items():
        Path(folder, "clerk").mkdir(parents=True)
        Path(folder, "clerk", "agent.py").write_text(imports + AGENT)
    for number in range(plan.pairs + 1):
        for folder in sorted(seconds, reverse=number % 2 == 0):
            seconds[folder].append(_check(folder))
    own, beside, adapted = (samples[1:] for samples in seconds.values())  # the first ones compiled
    name = "CPU time to start with an adapted agent, more than with our own"
    return [
        Row(name=name, samples=_differences(own, adapted), unit="s", note="with the import of google-adk itself"),
        Row(name="… without that import", samples=_differences(beside, adapted), unit="s", goal=1.0),
    ]


def _differences(less: list[float], more: list[float]) -> list[float]:
    return [theirs - ours for ours, theirs in zip(less, more, strict=True)]


def _check(folder: str) -> float:
    """Return the CPU time of `waystation worker check`."""
    before = os.times()
    command = [sys.executable, "-m", "waystation.worker", "check", "--agents", folder]
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
