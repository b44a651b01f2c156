from waystation.agents.base_agent import BaseAgent
from waystation.agents.context_cache_config import ContextCacheConfig
from waystation.agents.llm_agent import Agent, LlmAgent
from waystation.agents.loop_agent import LoopAgent
from waystation.agents.parallel_agent import ParallelAgent
from waystation.agents.run_config import RunConfig
from waystation.agents.sequential_agent import SequentialAgent
from waystation.apps.app import App, EventsCompactionConfig, ResumabilityConfig
from waystation.apps.base_events_summarizer import BaseEventsSummarizer
from waystation.apps.llm_event_summarizer import LlmEventSummarizer
from waystation.client.agent_client import AgentClient, Invocation
from waystation.client.connection import data_converter
from waystation.client.invocation_handle import stream_file
from waystation.code_executors import BuiltInCodeExecutor
from waystation.core.approval import ApprovalPolicy, Escalation, External, PendingCall
from waystation.core.budget import Budget, Grant, Price, Spent, Usage
from waystation.core.contract import Event as RecordedEvent
from waystation.core.contract import InvocationResult, ToolConfirmation
from waystation.core.errors import (
    AlreadyAnswered,
    AnswerRefused,
    AnswerUnconfirmed,
    AuthoringError,
    DigestMismatch,
    Expired,
    ForeignHistory,
    InvalidAnswer,
    InvalidInput,
    InvocationError,
    ModelError,
    ModelOverloaded,
    ModelRefused,
    NotAllowed,
    NotReplayable,
    UnknownAgent,
    UnknownCall,
    WaystationError,
)
from waystation.events import Event, EventActions, EventCompaction
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.models.google_llm import Gemini
from waystation.plugins.base_plugin import BasePlugin
from waystation.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin, TrackingScope
from waystation.runners.runner import Runner
from waystation.tools.agent_tool import AgentTool
from waystation.tools.approval_rule import ApprovalRule
from waystation.tools.base_context import ReadonlyContext
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
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
from waystation.tools.preload_memory_tool import preload_memory_tool as preload_memory
from waystation.tools.request_input_tool import request_input
from waystation.tools.resources import Resource
from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval
from waystation.tools.temporal_tools import ActivityTool, NexusTool, WorkflowTool
from waystation.tools.tool_context import CallbackContext, Context, ToolContext
from waystation.tools.url_context_tool import UrlContextTool, url_context
from waystation.tools.vertex_ai_search_tool import VertexAiSearchTool
from waystation.workflows.agent_call import run_agent

__all__ = [
    "ActivityTool",
    "Agent",
    "AgentClient",
    "AgentTool",
    "AlreadyAnswered",
    "AnswerRefused",
    "AnswerUnconfirmed",
    "App",
    "ApprovalPolicy",
    "ApprovalRule",
    "AuthoringError",
    "BaseAgent",
    "BaseEventsSummarizer",
    "BaseLlm",
    "BasePlugin",
    "BaseTool",
    "BaseToolset",
    "Budget",
    "BuiltInCodeExecutionTool",
    "BuiltInCodeExecutor",
    "CallbackContext",
    "Context",
    "ContextCacheConfig",
    "CrewaiTool",
    "DigestMismatch",
    "EnterpriseWebSearchTool",
    "Escalation",
    "Event",
    "EventActions",
    "EventCompaction",
    "EventsCompactionConfig",
    "Expired",
    "External",
    "ForeignHistory",
    "FunctionTool",
    "Gemini",
    "GoogleMapsGroundingTool",
    "GoogleSearchTool",
    "Grant",
    "InvalidAnswer",
    "InvalidInput",
    "Invocation",
    "InvocationError",
    "InvocationResult",
    "LangchainTool",
    "LlmAgent",
    "LlmEventSummarizer",
    "LlmRequest",
    "LlmResponse",
    "LongRunningFunctionTool",
    "LoopAgent",
    "ModelError",
    "ModelOverloaded",
    "ModelRefused",
    "NexusTool",
    "NotAllowed",
    "NotReplayable",
    "ParallelAgent",
    "PendingCall",
    "Price",
    "ReadonlyContext",
    "RecordedEvent",
    "ReflectAndRetryToolPlugin",
    "Resource",
    "ResumabilityConfig",
    "RunConfig",
    "Runner",
    "SequentialAgent",
    "Spent",
    "ToolConfirmation",
    "ToolContext",
    "TrackingScope",
    "UnknownAgent",
    "UnknownCall",
    "UrlContextTool",
    "Usage",
    "VertexAiRagRetrieval",
    "VertexAiSearchTool",
    "WaystationError",
    "WorkflowTool",
    "built_in_code_execution",
    "data_converter",
    "enterprise_web_search",
    "exit_loop",
    "get_user_choice",
    "google_maps_grounding",
    "google_search",
    "load_artifacts",
    "load_memory",
    "preload_memory",
    "request_input",
    "run_agent",
    "stream_file",
    "url_context",
]
