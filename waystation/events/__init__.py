"""Events, where ADK has `google.adk.events`."""

from waystation.core import Event, EventActions, ToolConfirmation

__all__ = ["Event", "EventActions", "ToolConfirmation"]
