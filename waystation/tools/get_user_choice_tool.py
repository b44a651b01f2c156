"""Where ADK has `google.adk.tools.get_user_choice_tool`: the function, and the tool that is made of it."""

from tools.ready_made import get_user_choice, get_user_choice_tool

__all__ = ["get_user_choice", "get_user_choice_tool"]
