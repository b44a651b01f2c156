"""Events of invocations. Mirrors ADK's `google.adk.events` package."""

from waystation.core import Event, EventActions, ToolConfirmation

__all__ = ["Event", "EventActions", "ToolConfirmation"]
