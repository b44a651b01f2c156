"""Where ADK has `google.adk.tools.url_context_tool`."""

from tools import UrlContextTool, url_context

__all__ = ["UrlContextTool", "url_context"]
