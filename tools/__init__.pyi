from waystation.agents.readonly_context import ReadonlyContext
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset, ToolPredicate
from waystation.tools.built_in_code_execution_tool import BuiltInCodeExecutionTool, built_in_code_execution
from waystation.tools.crewai_tool import CrewaiTool
from waystation.tools.enterprise_search_tool import EnterpriseWebSearchTool, enterprise_web_search
from waystation.tools.exit_loop_tool import exit_loop
from waystation.tools.function_tool import FunctionTool
from waystation.tools.get_user_choice_tool import get_user_choice_tool as get_user_choice
from waystation.tools.google_maps_grounding_tool import GoogleMapsGroundingTool, google_maps_grounding
from waystation.tools.google_search_tool import GoogleSearchTool, google_search
from waystation.tools.langchain_tool import LangchainTool
from waystation.tools.load_artifacts_tool import load_artifacts_tool as load_artifacts
from waystation.tools.load_memory_tool import load_memory_tool as load_memory
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.mcp_tool import MCPToolset as MCPToolset
from waystation.tools.mcp_tool import McpToolset as McpToolset
from waystation.tools.openapi_tool import OpenAPIToolset as OpenAPIToolset
from waystation.tools.openapi_tool import RestApiTool as RestApiTool
from waystation.tools.preload_memory_tool import preload_memory_tool as preload_memory
from waystation.tools.request_input_tool import request_input
from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval
from waystation.tools.tool_context import CallbackContext, ToolContext
from waystation.tools.url_context_tool import UrlContextTool, url_context
from waystation.tools.vertex_ai_search_tool import VertexAiSearchTool

__all__ = [
    "AgentTool",
    "BaseTool",
    "BaseToolset",
    "BuiltInCodeExecutionTool",
    "CallbackContext",
    "CrewaiTool",
    "EnterpriseWebSearchTool",
    "FunctionTool",
    "GoogleMapsGroundingTool",
    "GoogleSearchTool",
    "LangchainTool",
    "LongRunningFunctionTool",
    "ReadonlyContext",
    "ToolContext",
    "ToolPredicate",
    "UrlContextTool",
    "VertexAiRagRetrieval",
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
