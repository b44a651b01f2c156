"""Where ADK has `google.adk.tools.vertex_ai_search_tool`."""

from tools import VertexAiSearchTool

__all__ = ["VertexAiSearchTool"]
