"""A travel desk: a conversation that continues while a trip waits for approval."""

from waystation.agents import Agent
from waystation.tools import LongRunningFunctionTool, ToolContext

from .demo import demo_model as demo_model

HOME = "user:home"
"""With this prefix the value belongs to the user, in all conversations of the app."""
TRIPS = "trips"
"""Without a prefix the value belongs to the conversation."""


def remember_home(city: str, tool_context: ToolContext) -> dict[str, str]:
    """Remember the city from which the user travels.

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
    # A real tool would create a ticket here. The key is the same in all attempts, so a repetition finds the ticket.
    trips = tool_context.state.get(TRIPS, [])
    tool_context.state[TRIPS] = [*trips, destination]
    home = tool_context.state.get(HOME, "anywhere")
    return {"status": "pending", "from": home, "to": destination, "ticket-id": tool_context.idempotency_key}


root_agent = Agent(
    name="travel_desk",
    model="gemini-3.5-flash",
    description="Plans the business trips of an employee.",
    instruction="""\
You plan business trips. The user travels from {user:home?}.

When the user names a home city, call remember_home. When the user wants to go somewhere, call request_trip; it asks the
manager. Until the manager has decided, say so, and continue the conversation.
""",
    tools=[remember_home, LongRunningFunctionTool(func=request_trip)],
)
