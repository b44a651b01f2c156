"""Where ADK has `google.adk.agents.invocation_context`; plugins are given a CallbackContext."""

from waystation.tools import CallbackContext

InvocationContext = CallbackContext

__all__ = ["InvocationContext"]
