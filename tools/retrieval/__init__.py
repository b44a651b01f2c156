"""Retrieval tools, the counterpart of ADK's `google.adk.tools.retrieval`."""

from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval

__all__ = ["VertexAiRagRetrieval"]
