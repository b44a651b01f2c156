"""Tools, for authors; where ADK has `google.adk.tools`."""

from typing import TYPE_CHECKING

import tools
from tools import (
    AgentTool,
    BaseTool,
    BaseToolset,
    BuiltInCodeExecutionTool,
    EnterpriseWebSearchTool,
    FunctionTool,
    GoogleMapsGroundingTool,
    GoogleSearchTool,
    LongRunningFunctionTool,
    ToolContext,
    UrlContextTool,
    VertexAiSearchTool,
    built_in_code_execution,
    enterprise_web_search,
    exit_loop,
    get_user_choice,
    google_maps_grounding,
    google_search,
    load_artifacts,
    load_memory,
    preload_memory,
    request_input,
    url_context,
)

if TYPE_CHECKING:
    from tools import MCPToolset as MCPToolset
    from tools import McpToolset as McpToolset
    from tools import OpenAPIToolset as OpenAPIToolset
    from tools import RestApiTool as RestApiTool

__all__ = [
    "AgentTool",
    "BaseTool",
    "BaseToolset",
    "BuiltInCodeExecutionTool",
    "EnterpriseWebSearchTool",
    "FunctionTool",
    "GoogleMapsGroundingTool",
    "GoogleSearchTool",
    "LongRunningFunctionTool",
    "ToolContext",
    "UrlContextTool",
    "VertexAiSearchTool",
    "built_in_code_execution",
    "enterprise_web_search",
    "exit_loop",
    "get_user_choice",
    "google_maps_grounding",
    "google_search",
    "load_artifacts",
    "load_memory",
    "preload_memory",
    "request_input",
    "url_context",
]

if not TYPE_CHECKING:  # where it would make every misspelt name acceptable

    def __getattr__(name: str) -> object:
        if name not in ("MCPToolset", "McpToolset", "OpenAPIToolset", "RestApiTool"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Imported when first used, since they take a second, and need extras.
        return getattr(tools, name)
