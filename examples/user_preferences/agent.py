"""The preferences of ADK's documentation: a tool that reads and writes state which belongs to the user."""

from waystation.agents import Agent
from waystation.tools import ToolContext

from .demo import demo_model as demo_model

PREFERENCES = "user:preferences"
"""The prefix says whose it is: the user's, in all conversations of this application."""


def update_user_preference(preference: str, value: str, tool_context: ToolContext) -> dict[str, object]:
    """Remember what the user prefers.

    Args:
        preference: What it is about, in one word, such as theme.
        value: What the user prefers.
    """
    preferences = tool_context.state.get(PREFERENCES, {})
    preferences[preference] = value
    tool_context.state[PREFERENCES] = preferences
    return {"status": "success", "updated_preference": preference}


def list_user_preferences(tool_context: ToolContext) -> dict[str, str]:
    """Return everything that the user prefers."""
    preferences: dict[str, str] = tool_context.state.get(PREFERENCES, {})
    return preferences


root_agent = Agent(
    name="user_preferences_agent",
    model="gemini-2.5-flash",
    description="Remembers what users prefer.",
    instruction="Remember what the user prefers with update_user_preference, and tell it with list_user_preferences.",
    tools=[update_user_preference, list_user_preferences],
)
