"""Mirrors ADK's `google.adk.agents.invocation_context` module. Plugins receive a CallbackContext instead."""

from waystation.tools import CallbackContext

InvocationContext = CallbackContext

__all__ = ["InvocationContext"]
