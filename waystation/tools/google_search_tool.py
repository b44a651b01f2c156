"""Where ADK has `google.adk.tools.google_search_tool`."""

from tools import GoogleSearchTool, google_search

__all__ = ["GoogleSearchTool", "google_search"]
