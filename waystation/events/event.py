"""Mirrors ADK's `google.adk.events.event` module."""

from waystation.core import Event

__all__ = ["Event"]
