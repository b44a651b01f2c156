"""Mirrors ADK's `google.adk.sessions.state` module."""

from waystation.tools.state import State

__all__ = ["State"]
