"""Where ADK has `google.adk.tools.tool_context`."""

from tools import ToolContext

__all__ = ["ToolContext"]
