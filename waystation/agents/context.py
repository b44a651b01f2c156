"""Where ADK has `google.adk.agents.context`."""

from waystation.tools.tool_context import Context

__all__ = ["Context"]
