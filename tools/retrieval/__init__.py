"""Retrieval tools, the counterpart of ADK's `google.adk.tools.retrieval`."""

from functools import partial

from waystation.adk_names import import_name
from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval

__getattr__ = partial(import_name, __name__)
__all__ = ["VertexAiRagRetrieval"]
