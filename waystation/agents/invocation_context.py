"""Where ADK has `google.adk.agents.invocation_context`. Plugins receive a CallbackContext."""

from waystation.tools import CallbackContext

InvocationContext = CallbackContext

__all__ = ["InvocationContext"]
