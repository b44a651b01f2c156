"""Events, where ADK has `google.adk.events`."""

from waystation.core.conversation.event import Event, EventActions, ToolConfirmation

__all__ = ["Event", "EventActions", "ToolConfirmation"]
