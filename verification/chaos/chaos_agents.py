"""The agents of chaos. They carry out the plan in their message, and their payments are recorded in the ledger."""

import time
from datetime import timedelta

from tests.server.processes.agents.planned.agent import SOON_MISSED, follow
from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

OUTAGE = "model-outage"
"""File in the folder of the ledger. While it exists, the model does not respond."""
PAGE = "x" * 4_000
FOREVER_S = 1_000.0
BLOCKED_LONGER = timedelta(seconds=8)
"""A heartbeat timeout longer than a tool may block the event loop, so that the worker can still report the call."""


def think(request: LlmRequest) -> LlmResponse:
    """Follow the plan, except during an outage."""
    if ledger().is_open(OUTAGE):
        raise ConnectionError("The model is out of service.")
    return follow(request)


def fetch() -> dict[str, str]:
    """Fetch a page, which is large enough for the store."""
    return {"page": PAGE}


def pay(amount: int, tool_context: ToolContext) -> dict[str, int]:
    """Pay, which takes as many milliseconds as the amount."""
    ledger().note("paying", key=tool_context.idempotency_key)
    time.sleep(amount / 1_000)
    ledger().note("paid", key=tool_context.idempotency_key)
    return {"paid": amount}


async def hang(tool_context: ToolContext) -> None:
    """Block the event loop of the worker."""
    ledger().note("hanging", key=tool_context.idempotency_key)
    time.sleep(FOREVER_S)  # noqa: ASYNC251  # the tool is meant to block


def chaotic_agent(name: str) -> Agent:
    """Return an agent whose payments need approval and take effect at most once."""
    return Agent(
        name=name,
        model=FunctionModel(think),
        tools=[
            FunctionTool(fetch, heartbeat_timeout=SOON_MISSED),
            FunctionTool(pay, heartbeat_timeout=SOON_MISSED, require_confirmation=True, effect="once"),
            FunctionTool(hang, heartbeat_timeout=BLOCKED_LONGER),
        ],
    )
