"""Where ADK has `google.adk.agents.readonly_context`."""

from tools import ReadonlyContext

__all__ = ["ReadonlyContext"]
