"""Where ADK has `google.adk.tools.retrieval`."""

from tools import VertexAiRagRetrieval

__all__ = ["VertexAiRagRetrieval"]
