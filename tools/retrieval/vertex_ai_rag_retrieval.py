"""Retrieval from Vertex AI RAG Engine corpora."""

from collections.abc import Mapping, Sequence
from typing import Any

from waystation.core.payload import JsonObject
from waystation.tools import NativeTool


class VertexAiRagRetrieval(NativeTool):
    """A built-in tool that retrieves data from Vertex AI RAG Engine corpora."""

    title = "Vertex AI RAG retrieval"

    def __init__(
        self,
        *,
        name: str,
        description: str,
        rag_corpora: list[str] | None = None,
        rag_resources: Sequence[Any] | None = None,
        similarity_top_k: int | None = None,
        vector_distance_threshold: float | None = None,
    ) -> None:
        """Initialize the tool.

        Args:
            name: The tool's name within the agent. Not sent to the model.
            description: The tool's description. Not sent to the model.
            rag_corpora: Names of the corpora to search.
            rag_resources: Dictionaries or objects with `rag_corpus` and `rag_file_ids`.
            similarity_top_k: Maximum number of results to retrieve.
            vector_distance_threshold: Maximum vector distance of the results.

        Raises:
            TypeError: An item of `rag_resources` is neither a dictionary nor such an object.
        """
        super().__init__(name=name, description=description)
        store = {
            "ragCorpora": rag_corpora,
            "ragResources": [_rag_resource(resource) for resource in rag_resources or ()] or None,
            "similarityTopK": similarity_top_k,
            "vectorDistanceThreshold": vector_distance_threshold,
        }
        self.tool = {"retrieval": {"vertexRagStore": {key: item for key, item in store.items() if item is not None}}}


def _rag_resource(resource: Any) -> JsonObject:
    if isinstance(resource, Mapping):
        corpus = resource.get("rag_corpus", resource.get("ragCorpus"))
        files = resource.get("rag_file_ids", resource.get("ragFileIds"))
    elif hasattr(resource, "rag_corpus") or hasattr(resource, "rag_file_ids"):
        corpus, files = getattr(resource, "rag_corpus", None), getattr(resource, "rag_file_ids", None)
    else:
        raise TypeError(
            "rag_resources entries must be a mapping or an object carrying rag_corpus / rag_file_ids; "
            f"got {type(resource).__name__}."
        )
    fields = {"ragCorpus": corpus, "ragFileIds": list(files) if files is not None else None}
    return {key: value for key, value in fields.items() if value is not None}
