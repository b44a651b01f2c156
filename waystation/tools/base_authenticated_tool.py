"""Where ADK has `google.adk.tools.base_authenticated_tool`."""

from tools.authenticated import BaseAuthenticatedTool

__all__ = ["BaseAuthenticatedTool"]
