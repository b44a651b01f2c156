"""Where ADK has `google.adk.tools.tool_confirmation`."""

from waystation.core.event import ToolConfirmation

__all__ = ["ToolConfirmation"]
