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
    from tools import MCPToolset, McpToolset, OpenAPIToolset, RestApiTool

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
    "MCPToolset",
    "McpToolset",
    "OpenAPIToolset",
    "RestApiTool",
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
        # Those that take a second to import, and need extras.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(tools, name)
