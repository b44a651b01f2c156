"""Mirrors ADK's `google.adk.agents.callback_context` module."""

from waystation.tools import CallbackContext

__all__ = ["CallbackContext"]
