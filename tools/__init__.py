"""What an agent can do: tools, the context they are given, and what becomes of what they return.

For authors and for activities; workflows never import this.
"""

import importlib
from typing import TYPE_CHECKING

from tools.actions import Actions
from tools.agent_tool import AgentTool
from tools.artifact_tools import LoadArtifactsTool, load_artifacts_tool
from tools.authoring import agents_below, authoring_problems, tools_of, toolsets_of
from tools.base import BaseTool
from tools.context import CallbackContext, Context, ToolContext
from tools.crewai_tool import CrewaiTool
from tools.declaration import declare
from tools.function_tool import ArgumentsRefused, FunctionTool
from tools.langchain_tool import LangchainTool
from tools.long_running import LongRunningFunctionTool
from tools.memory_tools import LoadMemoryTool, PreloadMemoryTool, load_memory_tool, preload_memory_tool
from tools.native import (
    BuiltInCodeExecutionTool,
    EnterpriseWebSearchTool,
    GoogleMapsGroundingTool,
    GoogleSearchTool,
    NativeTool,
    UrlContextTool,
    VertexAiRagRetrieval,
    VertexAiSearchTool,
    built_in_code_execution,
    enterprise_web_search,
    google_maps_grounding,
    google_search,
    url_context,
)
from tools.outcome import TooLarge, describe, failure_of, outcome_of
from tools.readonly_context import ReadonlyContext
from tools.ready_made import exit_loop, get_user_choice_tool, request_input
from tools.services import NO_SERVICES, Services
from tools.session import Session
from tools.state import State, StateRefused
from tools.toolbox import close_toolsets, toolbox
from tools.toolset import BaseToolset, ToolPredicate

if TYPE_CHECKING:
    from tools.mcp import MCPToolset as MCPToolset
    from tools.mcp import McpToolset as McpToolset
    from tools.mcp import SseConnectionParams as SseConnectionParams
    from tools.mcp import StdioConnectionParams as StdioConnectionParams
    from tools.mcp import StreamableHTTPConnectionParams as StreamableHTTPConnectionParams
    from tools.openapi import OpenAPIToolset as OpenAPIToolset
    from tools.openapi import RestApiTool as RestApiTool

get_user_choice = get_user_choice_tool
load_artifacts = load_artifacts_tool
load_memory = load_memory_tool
preload_memory = preload_memory_tool

__all__ = [
    "NO_SERVICES",
    "Actions",
    "AgentTool",
    "ArgumentsRefused",
    "BaseTool",
    "BaseToolset",
    "BuiltInCodeExecutionTool",
    "CallbackContext",
    "Context",
    "CrewaiTool",
    "EnterpriseWebSearchTool",
    "FunctionTool",
    "GoogleMapsGroundingTool",
    "GoogleSearchTool",
    "LangchainTool",
    "LoadArtifactsTool",
    "LoadMemoryTool",
    "LongRunningFunctionTool",
    "NativeTool",
    "PreloadMemoryTool",
    "ReadonlyContext",
    "Services",
    "Session",
    "State",
    "StateRefused",
    "TooLarge",
    "ToolContext",
    "ToolPredicate",
    "UrlContextTool",
    "VertexAiRagRetrieval",
    "VertexAiSearchTool",
    "agents_below",
    "authoring_problems",
    "built_in_code_execution",
    "close_toolsets",
    "declare",
    "describe",
    "enterprise_web_search",
    "exit_loop",
    "failure_of",
    "get_user_choice",
    "google_maps_grounding",
    "google_search",
    "load_artifacts",
    "load_memory",
    "outcome_of",
    "preload_memory",
    "request_input",
    "toolbox",
    "tools_of",
    "toolsets_of",
    "url_context",
]

_MODULE_OF = {
    "MCPToolset": "tools.mcp",
    "McpToolset": "tools.mcp",
    "OpenAPIToolset": "tools.openapi",
    "RestApiTool": "tools.openapi",
    "SseConnectionParams": "tools.mcp",
    "StdioConnectionParams": "tools.mcp",
    "StreamableHTTPConnectionParams": "tools.mcp",
}
"""Imported when first used, and not by `import *`: they take a second, and need extras that not everybody has."""

if not TYPE_CHECKING:  # where it would make every misspelt name acceptable

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(module), name)
        return found
