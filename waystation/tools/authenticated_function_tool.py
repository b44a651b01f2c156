"""Where ADK has `google.adk.tools.authenticated_function_tool`."""

from tools.authenticated import AuthenticatedFunctionTool

__all__ = ["AuthenticatedFunctionTool"]
