"""An agent whose tools ask a person while they run, and take as long as the test wants."""

from typing import Any

from tests.server.processes.agents.planned.agent import SOON_MISSED
from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, calls, responses, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def book(tool_context: ToolContext) -> dict[str, Any]:
    """Book days off, once a person has said how many."""
    key, attempt, answer = tool_context.idempotency_key, tool_context.attempt, tool_context.tool_confirmation
    if answer is None:
        ledger().note("asked", key=key, attempt=attempt)
        tool_context.request_confirmation(hint="How many?")
        return {"status": "asked"}
    ledger().note("began", key=key, attempt=attempt, days=answer.payload["days"])
    ledger().wait("after")
    ledger().note("ended", key=key, attempt=attempt)
    return {"booked": answer.payload["days"]}


def book_once(tool_context: ToolContext) -> dict[str, Any]:
    """Book days off; this must never be done twice."""
    return book(tool_context)


def follow(request: LlmRequest) -> LlmResponse:
    """Book, and report the latest outcome."""
    told = responses(request)
    return says(str([response for _, response in told])) if told else calls(("book", {}), ("book_once", {}))


root_agent = Agent(
    name="booking",
    model=FunctionModel(follow),
    tools=[
        FunctionTool(book, heartbeat_timeout=SOON_MISSED),
        FunctionTool(book_once, heartbeat_timeout=SOON_MISSED, effect="once"),
    ],
)
