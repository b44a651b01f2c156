"""The ticket agent of ADK's documentation: a long-running tool, with news of its progress before the final answer."""

from typing import Literal

from waystation.agents import Agent
from waystation.tools import LongRunningFunctionTool, ToolContext

from .demo import demo_model as demo_model


def create_ticket(summary: str, urgency: Literal["low", "normal", "high"], tool_context: ToolContext) -> dict[str, str]:
    """Open a ticket at the help desk, where people work on it. News of it, and at last the outcome, come later.

    Args:
        summary: What is wrong, in one sentence.
        urgency: How soon it has to be dealt with.
    """
    # Here the help desk would be told. The key is the same over attempts and restarts, so that a repetition finds the
    # ticket of the first attempt.
    return {"status": "open", "ticket_id": f"ticket-{tool_context.idempotency_key}", "urgency": urgency}


root_agent = Agent(
    name="ticket_agent",
    model="gemini-2.5-flash",
    description="Opens tickets at the help desk and tells how they go.",
    instruction="""\
Open a ticket with create_ticket when the user reports that something is wrong. Tell the user in one sentence what came
of it whenever there is news. Do not open a second ticket for the same thing.
""",
    tools=[LongRunningFunctionTool(func=create_ticket)],
)
