"""An agent whose tools block the event loop of their worker. It follows the plan in its message."""

import signal
import time

from tests.server.processes.agents.planned.agent import follow, stay_once
from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

FOREVER_S = 1_000.0


def note(context: ToolContext) -> None:
    """Note that an attempt at a tool call began."""
    ledger().note("began", key=context.idempotency_key, attempt=context.attempt)


async def spin(tool_context: ToolContext) -> None:
    """Compute for ever, without yielding."""
    note(tool_context)
    while True:
        pass


async def doze(tool_context: ToolContext) -> None:
    """Sleep for ever in the event loop."""
    note(tool_context)
    time.sleep(FOREVER_S)  # noqa: ASYNC251  # the tool is meant to block


async def ignore_signals(tool_context: ToolContext) -> None:
    """Sleep for ever in code that no signal interrupts."""
    note(tool_context)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(FOREVER_S)  # noqa: ASYNC251  # the tool is meant to block


async def allocate(mebibytes: int, tool_context: ToolContext) -> int:
    """Keep some memory."""
    note(tool_context)
    _kept.append(bytearray(mebibytes << 20))
    return mebibytes


def think(request: LlmRequest) -> LlmResponse:
    """Block the event loop if the plan is empty, otherwise follow the plan."""
    if len(request.contents) == 1 and request.contents[0]["parts"][0]["text"] == "think":
        ledger().note("thinking")
        time.sleep(FOREVER_S)
    return follow(request)


_kept: list[bytearray] = []

root_agent = Agent(
    name="blocking",
    model=FunctionModel(think),
    tools=[
        spin,
        doze,
        FunctionTool(stay_once, effect="once"),
        FunctionTool(ignore_signals),
        FunctionTool(allocate),
    ],
)
