"""Where ADK has `google.adk.tools.long_running_tool`."""

from tools import LongRunningFunctionTool

__all__ = ["LongRunningFunctionTool"]
