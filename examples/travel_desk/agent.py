"""A travel desk to talk with: it knows what was said, and the talk goes on while a trip waits for approval."""

from waystation.agents import Agent
from waystation.tools import LongRunningFunctionTool, ToolContext

from .demo import demo_model as demo_model

HOME = "user:home"
"""The prefix says whose it is: the user's, in all conversations of this application."""
TRIPS = "trips"
"""Without a prefix it is the conversation's."""


def remember_home(city: str, tool_context: ToolContext) -> dict[str, str]:
    """Remember from which city the user travels.

    Args:
        city: The city.
    """
    tool_context.state[HOME] = city
    return {"home": city}


def request_trip(destination: str, tool_context: ToolContext) -> dict[str, object]:
    """Ask the manager to approve a trip.

    Args:
        destination: Where the user wants to go.
    """
    # Here a ticket would be made and the approver told. The key is the same over attempts and restarts, so that asking
    # twice finds the first ticket.
    trips = tool_context.state.get(TRIPS, [])
    tool_context.state[TRIPS] = [*trips, destination]
    home = tool_context.state.get(HOME, "anywhere")
    return {"status": "pending", "from": home, "to": destination, "ticket-id": tool_context.idempotency_key}


root_agent = Agent(
    name="travel_desk",
    model="gemini-2.5-flash",
    description="Plans the business trips of an employee.",
    instruction="""\
You plan business trips. The user travels from {user:home?}.

When the user tells from where, call remember_home. When the user wants to go somewhere, call request_trip; it asks the
manager. Until the manager has decided, say so, and go on talking about whatever the user brings up.
""",
    tools=[remember_home, LongRunningFunctionTool(func=request_trip)],
)
