"""Where ADK has `google.adk.events.event`."""

from waystation.core.event import Event

__all__ = ["Event"]
