"""The ticket agent of ADK's documentation: a long-running tool that reports progress."""

from typing import Literal

from waystation.agents import Agent
from waystation.tools import LongRunningFunctionTool, ToolContext

from .demo import demo_model as demo_model


def create_ticket(summary: str, urgency: Literal["low", "normal", "high"], tool_context: ToolContext) -> dict[str, str]:
    """Open a ticket at the help desk. Progress reports and the outcome come later.

    Args:
        summary: What is wrong, in one sentence.
        urgency: How soon it must be handled.
    """
    # A real tool would inform the help desk here. A repetition finds the ticket, because its key is the same.
    return {"status": "open", "ticket_id": f"ticket-{tool_context.idempotency_key}", "urgency": urgency}


root_agent = Agent(
    name="ticket_agent",
    model="gemini-3.5-flash",
    description="Opens tickets at the help desk and reports their progress.",
    instruction="""\
Open a ticket with create_ticket when the user reports that something is wrong. Report
every update to the user in one sentence. Do not open a second ticket for the same thing.
""",
    tools=[LongRunningFunctionTool(func=create_ticket)],
)
