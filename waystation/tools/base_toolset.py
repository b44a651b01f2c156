"""Where ADK has `google.adk.tools.base_toolset`."""

from tools import BaseToolset, ToolPredicate

__all__ = ["BaseToolset", "ToolPredicate"]
