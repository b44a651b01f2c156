"""Where ADK has `google.adk.events.event`."""

from waystation.core.conversation.event import Event

__all__ = ["Event"]
