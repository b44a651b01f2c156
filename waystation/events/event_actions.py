"""Mirrors ADK's `google.adk.events.event_actions` module."""

from waystation.core import EventActions, EventCompaction

__all__ = ["EventActions", "EventCompaction"]
