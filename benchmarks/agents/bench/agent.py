"""The engine's agent, whose model is a function. It runs in `worker.py`, as the agents of users do."""

import asyncio
import time
from collections.abc import Callable

from benchmarks.side import SLOW_S, SYSTEM, Scenario
from waystation import Agent
from waystation.core.contract import text_of
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, says
from waystation.tools import FunctionTool

LONG = 100
"""Minimum of steps for which an invocation's final text lists the CPU time at each model call."""
_cpu_ms: list[float] = []


def scenario_of(request: LlmRequest) -> Scenario:
    """Parse the scenario of a request."""
    return Scenario.parse(request.contents[0]["parts"][0]["text"])


def reply(request: LlmRequest) -> LlmResponse:
    """Reply with the next tool calls, or with the final text.

    The message of an invocation has the scenario. All messages of a session have the same one, with one step.
    """
    contents = request.contents
    scenario = scenario_of(request)
    has_results = "text" not in contents[-1]["parts"][0]
    if scenario.steps >= LONG:
        if not has_results:
            _cpu_ms.clear()
        _cpu_ms.append(time.process_time() * 1e3)
    if not scenario.steps or (has_results and (scenario.steps == 1 or len(contents) // 2 == scenario.steps)):
        return says(" ".join(f"{ms:.2f}" for ms in _cpu_ms) if scenario.steps >= LONG else "f" * scenario.final)
    return calls(*[(scenario.tool, {"size": scenario.size})] * scenario.calls)


class TimedModel(FunctionModel):
    """A model that takes as long as the scenario says, during which it streams its text."""

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the function's reply."""
        response, started = await super().generate(request), time.monotonic()
        letters = text_of(response.content) if on_text else "-"
        for number, letter in enumerate(letters, 1):
            if on_text:
                on_text(letter)
            due = started + scenario_of(request).model_ms / 1e3 * number / len(letters)
            await asyncio.sleep(due - time.monotonic())
        return response


async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


async def quick(size: int) -> str:
    """Return `size` bytes; runs inside the workflow task."""
    return "r" * size


async def slow(size: int) -> str:
    """Return `size` bytes after `SLOW_S`."""
    await asyncio.sleep(SLOW_S)
    return "r" * size


async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return "r" * size


root_agent = Agent(
    name="bench",
    model=TimedModel(reply),
    instruction=SYSTEM,
    tools=[
        lookup,
        slow,
        FunctionTool(quick, effect="read", quick=True),
        FunctionTool(danger, require_confirmation=True),
    ],
)
