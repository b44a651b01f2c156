"""Where ADK has `google.adk.tools.function_tool`."""

from tools import FunctionTool

__all__ = ["FunctionTool"]
