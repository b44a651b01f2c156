"""Where ADK has `google.adk.agents.callback_context`."""

from tools import CallbackContext

__all__ = ["CallbackContext"]
