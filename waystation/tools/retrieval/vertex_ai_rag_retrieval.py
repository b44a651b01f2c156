"""Where ADK has `google.adk.tools.retrieval.vertex_ai_rag_retrieval`."""

from tools import VertexAiRagRetrieval

__all__ = ["VertexAiRagRetrieval"]
