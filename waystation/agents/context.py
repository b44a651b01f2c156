"""Where ADK has `google.adk.agents.context`."""

from tools import Context

__all__ = ["Context"]
