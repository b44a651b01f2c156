"""Where ADK has `google.adk.tools.base_tool`."""

from tools import BaseTool

__all__ = ["BaseTool"]
