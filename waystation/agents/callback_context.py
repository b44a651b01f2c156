"""Where ADK has `google.adk.agents.callback_context`."""

from waystation.tools import CallbackContext

__all__ = ["CallbackContext"]
