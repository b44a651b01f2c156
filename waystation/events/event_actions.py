"""Where ADK has `google.adk.events.event_actions`."""

from waystation.core import EventActions, EventCompaction

__all__ = ["EventActions", "EventCompaction"]
