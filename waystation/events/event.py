"""Where ADK has `google.adk.events.event`."""

from waystation.core import Event

__all__ = ["Event"]
