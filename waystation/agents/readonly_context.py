"""Mirrors ADK's `google.adk.agents.readonly_context` module."""

from waystation.tools import NoInvocationContext as NoInvocationContext
from waystation.tools import ReadonlyContext

__all__ = ["ReadonlyContext"]
