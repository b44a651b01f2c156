"""An agent that follows the plan in its message: batches of calls, as JSON. It reports all responses at the end.

Its model is a function of the conversation alone, so it continues in any process after another one was killed.
"""

import asyncio
import json
import os
import signal
from datetime import timedelta
from typing import Any

from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, calls, responses, says, user_text
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

ELSEWHERE = "WAYSTATION_TEST_ELSEWHERE"
SOON_MISSED = timedelta(seconds=2)
"""A heartbeat timeout for tests that kill workers and wait until the server notices."""


def follow(request: LlmRequest) -> LlmResponse:
    """Call the next batch of the plan, or report all outcomes."""
    plan = json.loads(user_text(request))
    done = sum(any("functionCall" in part for part in content["parts"]) for content in request.contents)
    if done == len(plan):
        return says(json.dumps(responses(request)))
    return calls(*((tool, args) for tool, args in plan[done]))


def hold(gate: str, tool_context: ToolContext) -> dict[str, Any]:
    """Wait for a gate, in a thread, whatever else happens."""
    key, attempt = tool_context.idempotency_key, tool_context.attempt
    ledger().note("began", key=key, attempt=attempt)
    ledger().wait(gate)
    ledger().note("ended", key=key, attempt=attempt)
    return {"held": gate, "attempt": attempt}


def hold_once(gate: str, tool_context: ToolContext) -> dict[str, Any]:
    """Wait for a gate; this must never be done twice."""
    return hold(gate, tool_context)


def hold_confirmed(gate: str, tool_context: ToolContext) -> dict[str, Any]:
    """Wait for a gate, after a person has agreed."""
    return hold(gate, tool_context)


async def stay_once(gate: str, tool_context: ToolContext) -> dict[str, Any]:
    """Wait for a gate in the event loop; this must never be done twice."""
    ledger().note("began", key=tool_context.idempotency_key, attempt=tool_context.attempt)
    while not ledger().is_open(gate):
        await asyncio.sleep(0.005)
    return {"held": gate}


def work(gate: str, tool_context: ToolContext) -> dict[str, Any]:
    """Wait for a gate, with the timeouts that a tool has by default."""
    return hold(gate, tool_context)


def pay(amount: int, tool_context: ToolContext) -> dict[str, int]:
    """Pay, after a person has agreed."""
    ledger().note("paid", key=tool_context.idempotency_key, amount=amount)
    return {"paid": amount}


def remember(word: str, tool_context: ToolContext) -> dict[str, Any]:
    """Remember a word, and say which ones were known before."""
    known = dict(tool_context.state.to_dict())
    tool_context.state[word] = os.getpid()
    return {"known": sorted(known), "pid": os.getpid()}


def remember_elsewhere(word: str, tool_context: ToolContext) -> dict[str, Any]:
    """Remember a word on another task queue."""
    return remember(word, tool_context)


def look(tool_context: ToolContext) -> dict[str, Any]:
    """Look something up; the first time, the process is killed."""
    first = not ledger().lines("looked")
    ledger().note("looked", key=tool_context.idempotency_key)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"pid": os.getpid()}


root_agent = Agent(
    name="planned",
    model=FunctionModel(follow),
    tools=[
        FunctionTool(hold, heartbeat_timeout=SOON_MISSED),
        FunctionTool(hold_once, heartbeat_timeout=SOON_MISSED, effect="once"),
        FunctionTool(hold_confirmed, heartbeat_timeout=SOON_MISSED, require_confirmation=True),
        FunctionTool(stay_once, effect="once"),
        work,
        FunctionTool(pay, require_confirmation=True),
        remember,
        FunctionTool(look, effect="read", quick=True),
        FunctionTool(remember_elsewhere, task_queue=os.environ.get(ELSEWHERE)),
    ],
)
