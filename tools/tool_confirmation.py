"""ToolConfirmation, where ADK has it: `google.adk.tools.tool_confirmation`."""

from waystation.core import ToolConfirmation

__all__ = ["ToolConfirmation"]
