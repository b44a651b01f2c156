"""Mirrors ADK's `google.adk.agents.context` module."""

from waystation.tools.tool_context import Context

__all__ = ["Context"]
