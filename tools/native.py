"""Tools that the model's provider runs itself: they have no declaration, and nothing of them runs in a worker.

Each becomes one genai Tool in the request. It is kept as JSON, since genai's types take a second to import.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tools.base import BaseTool
from tools.context import ToolContext
from tools.readonly_context import ReadonlyContext
from waystation.core.payload import JsonObject, plain

if TYPE_CHECKING:
    from google.genai import types

    from waystation.models.llm_request import LlmRequest

_GEMINI = re.compile(
    r"(models/|projects/[^/]+/locations/[^/]+/publishers/[^/]+/models/|apigee/([^/]+/){0,2}|(?!projects/).*/)?gemini-.*"
)


def is_gemini_model(model: str) -> bool:
    """Whether a model's name is one of Gemini's; everything is while ADK_DISABLE_GEMINI_MODEL_ID_CHECK is set."""
    if os.environ.get("ADK_DISABLE_GEMINI_MODEL_ID_CHECK", "").strip().lower() in ("1", "true", "yes", "on"):
        return True
    return _GEMINI.fullmatch(model) is not None


class NativeTool(BaseTool):
    """A tool that a Gemini model's provider runs; subclass it for one that is missing here."""

    title: str = ""
    """How the tool is called in errors."""
    tool: JsonObject = {}
    """The genai Tool as JSON, such as `{"googleSearch": {}}`."""
    model: str | None = None
    """The model to call instead of the agent's, or None."""

    def native_tool(self, model: str | None, context: ReadonlyContext) -> JsonObject:
        """Return the genai Tool as JSON, for a request to `model`; None for a model object, which knows best itself.

        Raises:
            ValueError: The model is not one of Gemini's; the text is ADK's.
        """
        if model is not None and not is_gemini_model(model):
            raise ValueError(f"{self.title} is not supported for model {model}")
        return self._tool(context)

    def _tool(self, context: ReadonlyContext) -> JsonObject:
        return self.tool

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: "LlmRequest") -> None:
        """Add the tool to a request, as ADK's tools do."""
        from google.genai import types

        if self.model is not None:
            llm_request.model = self.model
        tool = types.Tool.model_validate(self.native_tool(llm_request.model, tool_context))
        llm_request.config.tools = [*(llm_request.config.tools or ()), tool]

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Refuse: the provider runs the tool."""
        raise RuntimeError(f"`{self.name}` is run by the model's provider, and cannot be called.")


class GoogleSearchTool(NativeTool):
    """Google Search, of which the model makes use by itself; the reply says what it found in `grounding_metadata`."""

    title = "Google search tool"
    tool = {"googleSearch": {}}

    def __init__(self, *, bypass_multi_tools_limit: bool = False, model: str | None = None) -> None:
        """With `model`, requests of the agent go to that model.

        Raises:
            ValueError: `bypass_multi_tools_limit` is asked for.
        """
        super().__init__(name="google_search", description="google_search")
        _refuse_bypass(bypass_multi_tools_limit, self.name)
        self.model = model


class UrlContextTool(NativeTool):
    """Reading of web pages that the conversation names."""

    title = "Url context tool"
    tool = {"urlContext": {}}

    def __init__(self) -> None:
        super().__init__(name="url_context", description="url_context")


class EnterpriseWebSearchTool(NativeTool):
    """Web search with the promises that enterprises need; on Vertex AI."""

    title = "Enterprise Web Search tool"
    tool = {"enterpriseWebSearch": {}}

    def __init__(self) -> None:
        super().__init__(name="enterprise_web_search", description="enterprise_web_search")


class GoogleMapsGroundingTool(NativeTool):
    """Google Maps; on Vertex AI."""

    title = "Google maps tool"
    tool = {"googleMaps": {}}

    def __init__(self) -> None:
        super().__init__(name="google_maps", description="google_maps")


class BuiltInCodeExecutionTool(NativeTool):
    """Execution of Python that the model writes, in the provider's sandbox."""

    title = "Gemini code execution tool"
    tool = {"codeExecution": {}}

    def __init__(self) -> None:
        super().__init__(name="code_execution", description="code_execution")


class VertexAiSearchTool(NativeTool):
    """Search in a data store or an app of Vertex AI Search.

    To choose a filter for each request, override `_build_vertex_ai_search_config`.
    """

    title = "Vertex AI search tool"

    def __init__(
        self,
        *,
        data_store_id: str | None = None,
        data_store_specs: "Sequence[types.VertexAISearchDataStoreSpec] | None" = None,
        search_engine_id: str | None = None,
        filter: str | None = None,
        max_results: int | None = None,
        bypass_multi_tools_limit: bool = False,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        """Give one of the two ids.

        Args:
            data_store_id: `projects/…/locations/…/collections/…/dataStores/…`.
            data_store_specs: Which data stores of the engine are searched.
            search_engine_id: `projects/…/locations/…/collections/…/engines/…`.
            filter: Which results count, in the service's language.
            max_results: How many results the model is given at most.
            bypass_multi_tools_limit: Not supported; see docs/adk.md.
            name: What the tool is called among the agent's tools; models are not told.
            description: Likewise.

        Raises:
            ValueError: The settings do not go together.
        """
        super().__init__(name=name or "vertex_ai_search", description=description or "vertex_ai_search")
        if (data_store_id is None) == (search_engine_id is None):
            raise ValueError("Either data_store_id or search_engine_id must be specified.")
        if data_store_specs is not None and search_engine_id is None:
            raise ValueError("search_engine_id must be specified if data_store_specs is specified.")
        _refuse_bypass(bypass_multi_tools_limit, self.name)
        self.data_store_id, self.search_engine_id = data_store_id, search_engine_id
        self.data_store_specs, self.filter, self.max_results = data_store_specs, filter, max_results

    def _build_vertex_ai_search_config(self, readonly_context: ReadonlyContext) -> "types.VertexAISearch":
        from google.genai import types

        return types.VertexAISearch(
            datastore=self.data_store_id,
            data_store_specs=list(self.data_store_specs) if self.data_store_specs is not None else None,
            engine=self.search_engine_id,
            filter=self.filter,
            max_results=self.max_results,
        )

    def _tool(self, context: ReadonlyContext) -> JsonObject:
        return {"retrieval": {"vertexAiSearch": _json(self._build_vertex_ai_search_config(context))}}


class VertexAiRagRetrieval(NativeTool):
    """Retrieval from corpora of the Vertex AI RAG engine."""

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
        """`rag_resources` are dictionaries or objects with `rag_corpus` and `rag_file_ids`.

        Raises:
            TypeError: Something in `rag_resources` is no such thing.
        """
        super().__init__(name=name, description=description)
        store = {
            "ragCorpora": rag_corpora,
            "ragResources": [_rag_resource(resource) for resource in rag_resources or ()] or None,
            "similarityTopK": similarity_top_k,
            "vectorDistanceThreshold": vector_distance_threshold,
        }
        found = {key: value for key, value in store.items() if value is not None}
        self.tool = {"retrieval": {"vertexRagStore": found}}


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
    found = {"ragCorpus": corpus, "ragFileIds": list(files) if files is not None else None}
    return {key: value for key, value in found.items() if value is not None}


def _refuse_bypass(asked: bool, name: str) -> None:
    if asked:
        raise ValueError(
            f"`{name}` cannot bypass the limit that earlier models than Gemini 3 put on other tools beside it; "
            "give it to an agent of its own, and that agent to yours as an AgentTool."
        )


def _json(value: Any) -> JsonObject:
    dumped: JsonObject = plain(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dumped


google_search = GoogleSearchTool()
url_context = UrlContextTool()
enterprise_web_search_tool = enterprise_web_search = EnterpriseWebSearchTool()
google_maps_grounding = GoogleMapsGroundingTool()
built_in_code_execution = BuiltInCodeExecutionTool()
