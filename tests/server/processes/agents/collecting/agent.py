"""An agent that fetches large pages, batch by batch, and asks a person in between. At the end it reports the pages.

Its message is a list of batches, as JSON: numbers of pages, or `"pay"`.
"""

import json
import os
from typing import Any

from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, calls, latest_turn, responses, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

PAGE = "x" * 30_000
"""Three of these are more than a run of an invocation carries inline; four are more than one of a session does."""


def follow(request: LlmRequest) -> LlmResponse:
    """Run the next batch, or report the pages in the prompt, including those of earlier messages."""
    said, answered = latest_turn(request)
    for batch in json.loads(said):
        wanted = [("pay", {"amount": 5})] if batch == "pay" else [("fetch", {"number": number}) for number in batch]
        if not answered:
            return calls(*wanted)
        answered = answered[len(wanted) :]
    return says(json.dumps([told.get("number", "paid") for _, told in responses(request)]))


def fetch(number: int, tool_context: ToolContext) -> dict[str, Any]:
    """Fetch a page."""
    ledger().note("fetched", key=tool_context.idempotency_key, number=number)
    tool_context.state["latest"] = number
    return {"number": number, "pid": os.getpid(), "page": PAGE}


def pay(amount: int, tool_context: ToolContext) -> dict[str, int]:
    """Pay, after a person has agreed."""
    ledger().note("paid", key=tool_context.idempotency_key, amount=amount)
    return {"paid": amount}


root_agent = Agent(
    name="collecting",
    model=FunctionModel(follow),
    tools=[fetch, FunctionTool(pay, require_confirmation=True)],
)
