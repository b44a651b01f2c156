"""Search data stores and apps of Vertex AI Search."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.core.payload import JsonObject
from waystation.tools import NativeTool, ReadonlyContext, refuse_bypass

if TYPE_CHECKING:
    from google.genai import types


class VertexAiSearchTool(NativeTool):
    """A built-in tool that searches a data store or an app of Vertex AI Search.

    To use a different filter for each request, override `_build_vertex_ai_search_config`.
    """

    name = "vertex_ai_search"
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
        """Pass either `data_store_id` or `search_engine_id`.

        Args:
            data_store_id: Data store in the form `projects/…/locations/…/collections/…/dataStores/…`.
            data_store_specs: The data stores to search if `search_engine_id` is given.
            search_engine_id: App in the form `projects/…/locations/…/collections/…/engines/…`.
            filter: Filter for the results, in the syntax of Vertex AI Search.
            max_results: Maximum number of results to return to the model.
            bypass_multi_tools_limit: Not supported; see docs/reference/adk.md.
            name: The tool's name within the agent. Not sent to the model.
            description: The tool's description. Not sent to the model.

        Raises:
            ValueError: The settings contradict each other.
        """
        super().__init__(name=name, description=description)
        if (data_store_id is None) == (search_engine_id is None):
            raise ValueError("Either data_store_id or search_engine_id must be specified.")
        if data_store_specs is not None and search_engine_id is None:
            raise ValueError("search_engine_id must be specified if data_store_specs is specified.")
        refuse_bypass(bypass_multi_tools_limit, self.name)
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
        config = self._build_vertex_ai_search_config(context)
        return {"retrieval": {"vertexAiSearch": config.model_dump(mode="json", by_alias=True, exclude_none=True)}}
