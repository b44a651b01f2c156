"""Durable ADK-style agents on Temporal: the public names, each loaded on first use.

`import waystation` alone loads neither Temporal nor a model SDK; workflow code, which imports `waystation.core`, passes
through here too.
"""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.agents import Agent as Agent
    from waystation.agents import ApprovalRule as ApprovalRule
    from waystation.agents import BaseAgent as BaseAgent
    from waystation.agents import LlmAgent as LlmAgent
    from waystation.agents import LoopAgent as LoopAgent
    from waystation.agents import ParallelAgent as ParallelAgent
    from waystation.agents import RunConfig as RunConfig
    from waystation.agents import SequentialAgent as SequentialAgent
    from waystation.agents.context_cache_config import ContextCacheConfig as ContextCacheConfig
    from waystation.agents.readonly_context import ReadonlyContext as ReadonlyContext
    from waystation.apps import App as App
    from waystation.apps import BaseEventsSummarizer as BaseEventsSummarizer
    from waystation.apps import EventsCompactionConfig as EventsCompactionConfig
    from waystation.apps import LlmEventSummarizer as LlmEventSummarizer
    from waystation.apps import ResumabilityConfig as ResumabilityConfig
    from waystation.client.agent_client import AgentClient as AgentClient
    from waystation.client.agent_client import Invocation as Invocation
    from waystation.client.invocation_handle import stream_file as stream_file
    from waystation.code_executors import BuiltInCodeExecutor as BuiltInCodeExecutor
    from waystation.core.approval.answer import PendingCall as PendingCall
    from waystation.core.approval.policy import ApprovalPolicy as ApprovalPolicy
    from waystation.core.approval.policy import Escalation as Escalation
    from waystation.core.budget import Budget as Budget
    from waystation.core.budget import Grant as Grant
    from waystation.core.budget import Price as Price
    from waystation.core.budget import Spent as Spent
    from waystation.core.budget import Usage as Usage
    from waystation.core.conversation.event import Event as Event
    from waystation.core.conversation.event import EventActions as EventActions
    from waystation.core.conversation.event import EventCompaction as EventCompaction
    from waystation.core.conversation.event import ToolConfirmation as ToolConfirmation
    from waystation.core.errors import AlreadyAnswered as AlreadyAnswered
    from waystation.core.errors import AnswerRefused as AnswerRefused
    from waystation.core.errors import AnswerUnconfirmed as AnswerUnconfirmed
    from waystation.core.errors import AuthoringError as AuthoringError
    from waystation.core.errors import DigestMismatch as DigestMismatch
    from waystation.core.errors import Expired as Expired
    from waystation.core.errors import ForeignHistory as ForeignHistory
    from waystation.core.errors import InvalidAnswer as InvalidAnswer
    from waystation.core.errors import InvalidInput as InvalidInput
    from waystation.core.errors import InvocationError as InvocationError
    from waystation.core.errors import ModelError as ModelError
    from waystation.core.errors import ModelOverloaded as ModelOverloaded
    from waystation.core.errors import ModelRefused as ModelRefused
    from waystation.core.errors import NotAllowed as NotAllowed
    from waystation.core.errors import NotReplayable as NotReplayable
    from waystation.core.errors import UnknownAgent as UnknownAgent
    from waystation.core.errors import UnknownCall as UnknownCall
    from waystation.core.errors import WaystationError as WaystationError
    from waystation.core.wire import InvocationResult as InvocationResult
    from waystation.models import BaseLlm as BaseLlm
    from waystation.models import LlmRequest as LlmRequest
    from waystation.models import LlmResponse as LlmResponse
    from waystation.models.google_llm import Gemini as Gemini
    from waystation.plugins import BasePlugin as BasePlugin
    from waystation.plugins import ReflectAndRetryToolPlugin as ReflectAndRetryToolPlugin
    from waystation.plugins import TrackingScope as TrackingScope
    from waystation.tools.agent_tool import AgentTool as AgentTool
    from waystation.tools.base_tool import BaseTool as BaseTool
    from waystation.tools.base_toolset import BaseToolset as BaseToolset
    from waystation.tools.built_in_code_execution_tool import BuiltInCodeExecutionTool as BuiltInCodeExecutionTool
    from waystation.tools.built_in_code_execution_tool import built_in_code_execution as built_in_code_execution
    from waystation.tools.crewai_tool import CrewaiTool as CrewaiTool
    from waystation.tools.enterprise_search_tool import EnterpriseWebSearchTool as EnterpriseWebSearchTool
    from waystation.tools.enterprise_search_tool import enterprise_web_search as enterprise_web_search
    from waystation.tools.exit_loop_tool import exit_loop as exit_loop
    from waystation.tools.function_tool import FunctionTool as FunctionTool
    from waystation.tools.get_user_choice_tool import get_user_choice_tool as get_user_choice
    from waystation.tools.google_maps_grounding_tool import GoogleMapsGroundingTool as GoogleMapsGroundingTool
    from waystation.tools.google_maps_grounding_tool import google_maps_grounding as google_maps_grounding
    from waystation.tools.google_search_tool import GoogleSearchTool as GoogleSearchTool
    from waystation.tools.google_search_tool import google_search as google_search
    from waystation.tools.langchain_tool import LangchainTool as LangchainTool
    from waystation.tools.load_artifacts_tool import load_artifacts_tool as load_artifacts
    from waystation.tools.load_memory_tool import load_memory_tool as load_memory
    from waystation.tools.long_running_tool import LongRunningFunctionTool as LongRunningFunctionTool
    from waystation.tools.preload_memory_tool import preload_memory_tool as preload_memory
    from waystation.tools.request_input_tool import request_input as request_input
    from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval as VertexAiRagRetrieval
    from waystation.tools.tool_context import CallbackContext as CallbackContext
    from waystation.tools.tool_context import ToolContext as ToolContext
    from waystation.tools.url_context_tool import UrlContextTool as UrlContextTool
    from waystation.tools.url_context_tool import url_context as url_context
    from waystation.tools.vertex_ai_search_tool import VertexAiSearchTool as VertexAiSearchTool

__all__ = [
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
    "NotAllowed",
    "NotReplayable",
    "ParallelAgent",
    "PendingCall",
    "Price",
    "ReadonlyContext",
    "ReflectAndRetryToolPlugin",
    "ResumabilityConfig",
    "RunConfig",
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
    "stream_file",
    "url_context",
]

_EXPORTS = {
    "waystation.tools.agent_tool": "AgentTool",
    "waystation.tools.base_tool": "BaseTool",
    "waystation.tools.base_toolset": "BaseToolset",
    "waystation.tools.built_in_code_execution_tool": "BuiltInCodeExecutionTool built_in_code_execution",
    "waystation.tools.crewai_tool": "CrewaiTool",
    "waystation.tools.enterprise_search_tool": "EnterpriseWebSearchTool enterprise_web_search",
    "waystation.tools.exit_loop_tool": "exit_loop",
    "waystation.tools.function_tool": "FunctionTool",
    "waystation.tools.get_user_choice_tool": "get_user_choice=get_user_choice_tool",
    "waystation.tools.google_maps_grounding_tool": "GoogleMapsGroundingTool google_maps_grounding",
    "waystation.tools.google_search_tool": "GoogleSearchTool google_search",
    "waystation.tools.langchain_tool": "LangchainTool",
    "waystation.tools.load_artifacts_tool": "load_artifacts=load_artifacts_tool",
    "waystation.tools.load_memory_tool": "load_memory=load_memory_tool",
    "waystation.tools.long_running_tool": "LongRunningFunctionTool",
    "waystation.tools.preload_memory_tool": "preload_memory=preload_memory_tool",
    "waystation.tools.request_input_tool": "request_input",
    "waystation.tools.retrieval.vertex_ai_rag_retrieval": "VertexAiRagRetrieval",
    "waystation.tools.tool_context": "CallbackContext ToolContext",
    "waystation.agents.readonly_context": "ReadonlyContext",
    "waystation.tools.url_context_tool": "UrlContextTool url_context",
    "waystation.tools.vertex_ai_search_tool": "VertexAiSearchTool",
    "waystation.agents": "Agent ApprovalRule BaseAgent LlmAgent LoopAgent ParallelAgent RunConfig SequentialAgent",
    "waystation.agents.context_cache_config": "ContextCacheConfig",
    "waystation.apps": "App BaseEventsSummarizer EventsCompactionConfig LlmEventSummarizer ResumabilityConfig",
    "waystation.code_executors": "BuiltInCodeExecutor",
    "waystation.client.agent_client": "AgentClient Invocation",
    "waystation.client.invocation_handle": "stream_file",
    "waystation.core.errors": (
        "AlreadyAnswered AnswerRefused AnswerUnconfirmed AuthoringError DigestMismatch Expired "
        "ForeignHistory InvalidAnswer InvalidInput InvocationError ModelError ModelOverloaded "
        "ModelRefused NotAllowed NotReplayable UnknownAgent UnknownCall WaystationError"
    ),
    "waystation.core.conversation.event": "Event EventActions EventCompaction ToolConfirmation",
    "waystation.core.approval.answer": "PendingCall",
    "waystation.core.budget": "Budget Grant Price Spent Usage",
    "waystation.core.approval.policy": "ApprovalPolicy Escalation",
    "waystation.core.wire": "InvocationResult",
    "waystation.models": "BaseLlm LlmRequest LlmResponse",
    "waystation.models.google_llm": "Gemini",
    "waystation.plugins": "BasePlugin ReflectAndRetryToolPlugin TrackingScope",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
