"""Provides ToolConfirmation under the same module name as in ADK, `google.adk.tools.tool_confirmation`."""

from waystation.core.contract import ToolConfirmation

__all__ = ["ToolConfirmation"]
