# Names outside `__all__` are for the engine, or need an extra.
from waystation.tools.agent_tool import AgentTool
from waystation.tools.approval import find_required_approval as find_required_approval
from waystation.tools.approval import is_subject_to_rules as is_subject_to_rules
from waystation.tools.approval import parameters_digest as parameters_digest
from waystation.tools.approval_rule import ApprovalRule as ApprovalRule
from waystation.tools.authorization import NO_AUTHORIZATION as NO_AUTHORIZATION
from waystation.tools.authorization import Authorization as Authorization
from waystation.tools.authorization import ToolCredential as ToolCredential
from waystation.tools.authorization import authentication_problems as authentication_problems
from waystation.tools.authorization import authorize as authorize
from waystation.tools.authorization import call_header_provider as call_header_provider
from waystation.tools.base_context import NoInvocationContext as NoInvocationContext
from waystation.tools.base_context import ReadonlyContext
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_tool import OnError as OnError
from waystation.tools.base_tool import cacheable as cacheable
from waystation.tools.base_tool import declaration as declaration
from waystation.tools.base_tool import declaration_key as declaration_key
from waystation.tools.base_tool import declare as declare
from waystation.tools.base_toolset import BaseToolset, ToolPredicate
from waystation.tools.built_in_code_execution_tool import BuiltInCodeExecutionTool, built_in_code_execution
from waystation.tools.crewai_tool import CrewaiTool
from waystation.tools.enterprise_search_tool import EnterpriseWebSearchTool, enterprise_web_search
from waystation.tools.exit_loop_tool import exit_loop
from waystation.tools.function_tool import ArgumentsRejected as ArgumentsRejected
from waystation.tools.function_tool import FunctionTool
from waystation.tools.functions import Signature as Signature
from waystation.tools.functions import argument_mistakes as argument_mistakes
from waystation.tools.functions import doc_of as doc_of
from waystation.tools.functions import invoke as invoke
from waystation.tools.functions import name_of as name_of
from waystation.tools.functions import validation_mistakes as validation_mistakes
from waystation.tools.get_user_choice_tool import get_user_choice_tool as get_user_choice
from waystation.tools.google_maps_grounding_tool import GoogleMapsGroundingTool, google_maps_grounding
from waystation.tools.google_search_tool import GoogleSearchTool, google_search
from waystation.tools.json_schema import flatten_for_vertex as flatten_for_vertex
from waystation.tools.json_schema import on_vertex as on_vertex
from waystation.tools.langchain_tool import LangchainTool
from waystation.tools.load_artifacts_tool import load_artifacts_tool as load_artifacts
from waystation.tools.load_memory_tool import load_memory_tool as load_memory
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.mcp_tool.mcp_toolset import MCPToolset as MCPToolset
from waystation.tools.mcp_tool.mcp_toolset import McpToolset as McpToolset
from waystation.tools.native_tool import NativeTool as NativeTool
from waystation.tools.native_tool import refuse_bypass as refuse_bypass
from waystation.tools.openapi_tool.openapi_spec_parser.openapi_toolset import OpenAPIToolset as OpenAPIToolset
from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import RestApiTool as RestApiTool
from waystation.tools.output_schema import SetModelResponseTool as SetModelResponseTool
from waystation.tools.places import find_author_line as find_author_line
from waystation.tools.predicates import call_predicate as call_predicate
from waystation.tools.predicates import collect_failures as collect_failures
from waystation.tools.predicates import report_failure as report_failure
from waystation.tools.preload_memory_tool import preload_memory_tool as preload_memory
from waystation.tools.request_input_tool import RequestInputTool as RequestInputTool
from waystation.tools.request_input_tool import request_input
from waystation.tools.resources import Lifespan as Lifespan
from waystation.tools.resources import Resource
from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval
from waystation.tools.services import NO_SERVICES as NO_SERVICES
from waystation.tools.services import Services as Services
from waystation.tools.session_view import Session as Session
from waystation.tools.state import State as State
from waystation.tools.temporal_tools import ActivityTool, NexusTool, WorkflowTool
from waystation.tools.temporal_tools import TemporalTool as TemporalTool
from waystation.tools.tool_context import CallbackContext, ToolContext
from waystation.tools.transfer import TransferToAgentTool as TransferToAgentTool
from waystation.tools.url_context_tool import UrlContextTool, url_context
from waystation.tools.vertex_ai_search_tool import VertexAiSearchTool

__all__ = [
    "ActivityTool",
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
    "NexusTool",
    "ReadonlyContext",
    "Resource",
    "ToolContext",
    "ToolPredicate",
    "UrlContextTool",
    "VertexAiRagRetrieval",
    "VertexAiSearchTool",
    "WorkflowTool",
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
