"""The engine's agent, whose model is a function. It runs in `worker.py`, as the agents of users do."""

import time

from benchmarks.side import SYSTEM, Scenario
from waystation import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, says
from waystation.tools import FunctionTool

LONG = 100
"""Minimum of steps for which an invocation's final text lists the CPU time at each model call."""
_cpu_ms: list[float] = []


def reply(request: LlmRequest) -> LlmResponse:
    """Reply with the next tool calls, or with the final text.

    The message of an invocation has the scenario. All messages of a session have the same one, with one step.
    """
    contents = request.contents
    scenario = Scenario.parse(contents[0]["parts"][0]["text"])
    has_results = "text" not in contents[-1]["parts"][0]
    if scenario.steps >= LONG:
        if not has_results:
            _cpu_ms.clear()
        _cpu_ms.append(time.process_time() * 1e3)
    if has_results and (scenario.steps == 1 or len(contents) // 2 == scenario.steps):
        return says(" ".join(f"{ms:.2f}" for ms in _cpu_ms) if scenario.steps >= LONG else "f" * scenario.final)
    return calls(*[(scenario.tool, {"size": scenario.size})] * scenario.calls)


async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


async def quick(size: int) -> str:
    """Return `size` bytes; runs inside the workflow task."""
    return "r" * size


async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return "r" * size


root_agent = Agent(
    name="bench",
    model=FunctionModel(reply),
    instruction=SYSTEM,
    tools=[
        lookup,
        FunctionTool(quick, effect="read", quick=True),
        FunctionTool(danger, require_confirmation=True),
    ],
)
