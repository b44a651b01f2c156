"""Where ADK has `google.adk.agents.callback_context`."""

from waystation.tools.tool_context import CallbackContext

__all__ = ["CallbackContext"]
