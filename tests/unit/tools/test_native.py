"""Tools that run at the model's provider."""

from typing import Any

import pytest
from google.genai import types

from waystation.agents.readonly_context import ReadonlyContext
from waystation.models.llm_request import LlmRequest
from waystation.tools.base_tool import declare
from waystation.tools.built_in_code_execution_tool import BuiltInCodeExecutionTool
from waystation.tools.enterprise_search_tool import EnterpriseWebSearchTool
from waystation.tools.google_maps_grounding_tool import GoogleMapsGroundingTool
from waystation.tools.google_search_tool import GoogleSearchTool
from waystation.tools.native_tool import NativeTool, is_gemini_model
from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval
from waystation.tools.tool_context import ToolContext
from waystation.tools.url_context_tool import UrlContextTool
from waystation.tools.vertex_ai_search_tool import VertexAiSearchTool

STORE = "projects/p/locations/l/collections/c/dataStores/d"
ENGINE = "projects/p/locations/l/collections/c/engines/e"
TOOLS: list[tuple[NativeTool, dict[str, Any], str]] = [
    (GoogleSearchTool(), {"googleSearch": {}}, "Google search tool"),
    (UrlContextTool(), {"urlContext": {}}, "Url context tool"),
    (EnterpriseWebSearchTool(), {"enterpriseWebSearch": {}}, "Enterprise Web Search tool"),
    (GoogleMapsGroundingTool(), {"googleMaps": {}}, "Google maps tool"),
    (BuiltInCodeExecutionTool(), {"codeExecution": {}}, "Gemini code execution tool"),
    (
        VertexAiSearchTool(data_store_id=STORE, filter="a = 1", max_results=3),
        {"retrieval": {"vertexAiSearch": {"datastore": STORE, "filter": "a = 1", "maxResults": 3}}},
        "Vertex AI search tool",
    ),
    (
        VertexAiSearchTool(
            search_engine_id=ENGINE, data_store_specs=[types.VertexAISearchDataStoreSpec(data_store=STORE)]
        ),
        {"retrieval": {"vertexAiSearch": {"engine": ENGINE, "dataStoreSpecs": [{"dataStore": STORE}]}}},
        "Vertex AI search tool",
    ),
    (
        VertexAiRagRetrieval(
            name="manuals",
            description="Our manuals.",
            rag_resources=[
                {"rag_corpus": "c", "rag_file_ids": ["f"]},
                types.VertexRagStoreRagResource(rag_corpus="d"),
            ],
            similarity_top_k=5,
            vector_distance_threshold=0.5,
        ),
        {
            "retrieval": {
                "vertexRagStore": {
                    "ragResources": [{"ragCorpus": "c", "ragFileIds": ["f"]}, {"ragCorpus": "d"}],
                    "similarityTopK": 5,
                    "vectorDistanceThreshold": 0.5,
                }
            }
        },
        "Vertex AI RAG retrieval",
    ),
]


@pytest.mark.parametrize(("tool", "expected", "title"), TOOLS, ids=lambda value: getattr(value, "name", ""))
async def test_a_native_tool_is_one_genai_tool_in_the_request(
    tool: NativeTool, expected: dict[str, Any], title: str
) -> None:
    """The engine receives JSON, and callers of ADK's hook genai's type; the tool is never a declaration."""
    assert declare(tool) is None
    assert tool.native_tool("gemini-3.5-flash", ReadonlyContext()) == expected
    request = LlmRequest(model="gemini-3.5-flash")
    await tool.process_llm_request(tool_context=ToolContext(), llm_request=request)
    added = [tool for tool in request.config.tools or () if isinstance(tool, types.Tool)]
    assert [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in added] == [expected]


@pytest.mark.parametrize(("tool", "expected", "title"), TOOLS, ids=lambda value: getattr(value, "name", ""))
def test_other_models_refuse_native_tools(tool: NativeTool, expected: dict[str, Any], title: str) -> None:
    """The error has ADK's text if ADK has one."""
    with pytest.raises(ValueError, match=f"^{title} is not supported for model gpt-5$"):
        tool.native_tool("gpt-5", ReadonlyContext())


async def test_a_tool_may_set_the_model() -> None:
    """The tool `GoogleSearchTool(model=…)` sends the request to that model."""
    tool = GoogleSearchTool(model="gemini-3-flash")
    request = LlmRequest(model="gpt-5")
    await tool.process_llm_request(tool_context=ToolContext(), llm_request=request)
    assert request.model == "gemini-3-flash"


def test_a_search_may_depend_on_the_state() -> None:
    """A search can be filtered by values of the state, as in ADK."""

    class Mine(VertexAiSearchTool):
        def _build_vertex_ai_search_config(self, readonly_context: ReadonlyContext) -> types.VertexAISearch:
            return types.VertexAISearch(datastore=self.data_store_id, filter=f"user = {readonly_context.state['id']}")

    tool = Mine(data_store_id=STORE)
    native_tool = tool.native_tool("gemini-3.5-flash", ReadonlyContext(state={"id": 7}))
    assert native_tool == {"retrieval": {"vertexAiSearch": {"datastore": STORE, "filter": "user = 7"}}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Either data_store_id or search_engine_id"),
        ({"data_store_id": STORE, "search_engine_id": ENGINE}, "Either data_store_id or search_engine_id"),
        ({"data_store_id": STORE, "data_store_specs": []}, "search_engine_id must be specified if data_store_specs"),
        ({"data_store_id": STORE, "bypass_multi_tools_limit": True}, "move the tool to a separate agent"),
    ],
)
def test_contradictory_search_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    """The error is raised when the tool is created."""
    with pytest.raises(ValueError, match=message):
        VertexAiSearchTool(**settings)


def test_an_invalid_rag_resource_is_refused() -> None:
    """The error is raised when the tool is created."""
    with pytest.raises(TypeError, match="rag_corpus / rag_file_ids; got str"):
        VertexAiRagRetrieval(name="a", description="", rag_resources=["corpus"])


@pytest.mark.parametrize(
    ("model", "gemini"),
    [
        ("gemini-3.5-flash", True),
        ("models/gemini-3.5-flash", True),
        ("projects/p/locations/l/publishers/google/models/gemini-3.1-pro-preview", True),
        ("gemini/gemini-3.5-flash", True),
        ("openrouter/google/gemini-3.1-pro-preview:online", True),
        ("apigee/v1/gemini-3.5-flash", True),
        ("projects/p/gemini-2", False),
        ("gpt-5", False),
        ("my-gemini-2", False),
        ("", False),
    ],
)
def test_gemini_models_are_recognized_by_name(model: str, gemini: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are recognized as by google-adk; the environment may declare every model a Gemini model."""
    assert is_gemini_model(model) is gemini
    monkeypatch.setenv("ADK_DISABLE_GEMINI_MODEL_ID_CHECK", "true")
    assert is_gemini_model(model)


async def test_a_worker_cannot_run_a_native_tool() -> None:
    """A model that calls it like a function receives an error."""
    with pytest.raises(RuntimeError, match="the model's provider runs it"):
        await GoogleSearchTool().run_async(args={}, tool_context=ToolContext())
