"""The preferences of ADK's documentation: tools that read and write state of the user."""

from waystation.agents import Agent
from waystation.tools import ToolContext

from .demo import demo_model as demo_model

PREFERENCES = "user:preferences"
"""With this prefix the value belongs to the user, in all conversations of the app."""


def update_user_preference(preference: str, value: str, tool_context: ToolContext) -> dict[str, object]:
    """Remember a preference of the user.

    Args:
        preference: The topic in one word, such as theme.
        value: The preferred value.
    """
    preferences = tool_context.state.get(PREFERENCES, {})
    preferences[preference] = value
    tool_context.state[PREFERENCES] = preferences
    return {"status": "success", "updated_preference": preference}


def list_user_preferences(tool_context: ToolContext) -> dict[str, str]:
    """Return all preferences of the user."""
    preferences: dict[str, str] = tool_context.state.get(PREFERENCES, {})
    return preferences


root_agent = Agent(
    name="user_preferences_agent",
    model="gemini-3.5-flash",
    description="Remembers the preferences of users.",
    instruction="Remember preferences with update_user_preference, and report them with list_user_preferences.",
    tools=[update_user_preference, list_user_preferences],
)
