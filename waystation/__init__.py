"""Durable ADK-style agents on Temporal: the public names, each imported when it is first used.

`import waystation` alone loads neither Temporal nor a model's SDK, and workflow code, which imports `waystation.core`,
passes through here too.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools import (
        AgentTool,
        BaseTool,
        BaseToolset,
        BuiltInCodeExecutionTool,
        CallbackContext,
        CrewaiTool,
        EnterpriseWebSearchTool,
        FunctionTool,
        GoogleMapsGroundingTool,
        GoogleSearchTool,
        LangchainTool,
        LongRunningFunctionTool,
        ReadonlyContext,
        ToolContext,
        UrlContextTool,
        VertexAiRagRetrieval,
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
    from waystation.agents import (
        Agent,
        ApprovalRule,
        BaseAgent,
        LlmAgent,
        LoopAgent,
        ParallelAgent,
        RunConfig,
        SequentialAgent,
    )
    from waystation.agents.context_cache_config import ContextCacheConfig
    from waystation.apps import (
        App,
        BaseEventsSummarizer,
        EventsCompactionConfig,
        LlmEventSummarizer,
        ResumabilityConfig,
    )
    from waystation.client.agent_client import AgentClient, Invocation
    from waystation.client.streams import stream_file
    from waystation.code_executors import BuiltInCodeExecutor
    from waystation.core.answer import PendingCall
    from waystation.core.budget import Budget, Grant, Price, Spent, Usage
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
    from waystation.core.event import Event, EventActions, EventCompaction, ToolConfirmation
    from waystation.core.policy import ApprovalPolicy, Escalation
    from waystation.core.wire import InvocationResult
    from waystation.models import BaseLlm, LlmRequest, LlmResponse
    from waystation.models.google_llm import Gemini
    from waystation.plugins import BasePlugin, ReflectAndRetryToolPlugin, TrackingScope

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

_NAMES_BY_MODULE = {
    "tools": (
        "AgentTool BaseTool BaseToolset BuiltInCodeExecutionTool CallbackContext CrewaiTool EnterpriseWebSearchTool "
        "FunctionTool GoogleMapsGroundingTool GoogleSearchTool LangchainTool LongRunningFunctionTool ReadonlyContext "
        "ToolContext UrlContextTool VertexAiRagRetrieval VertexAiSearchTool built_in_code_execution "
        "enterprise_web_search exit_loop get_user_choice google_maps_grounding google_search request_input "
        "load_artifacts load_memory preload_memory "
        "url_context"
    ),
    "waystation.agents": "Agent ApprovalRule BaseAgent LlmAgent LoopAgent ParallelAgent RunConfig SequentialAgent",
    "waystation.agents.context_cache_config": "ContextCacheConfig",
    "waystation.apps": "App BaseEventsSummarizer EventsCompactionConfig LlmEventSummarizer ResumabilityConfig",
    "waystation.code_executors": "BuiltInCodeExecutor",
    "waystation.client.agent_client": "AgentClient Invocation",
    "waystation.client.streams": "stream_file",
    "waystation.core.errors": (
        "AlreadyAnswered AnswerRefused AnswerUnconfirmed AuthoringError DigestMismatch Expired ForeignHistory "
        "InvalidAnswer InvalidInput InvocationError ModelError ModelOverloaded ModelRefused NotAllowed NotReplayable "
        "UnknownAgent UnknownCall WaystationError"
    ),
    "waystation.core.event": "Event EventActions EventCompaction ToolConfirmation",
    "waystation.core.answer": "PendingCall",
    "waystation.core.budget": "Budget Grant Price Spent Usage",
    "waystation.core.policy": "ApprovalPolicy Escalation",
    "waystation.core.wire": "InvocationResult",
    "waystation.models": "BaseLlm LlmRequest LlmResponse",
    "waystation.models.google_llm": "Gemini",
    "waystation.plugins": "BasePlugin ReflectAndRetryToolPlugin TrackingScope",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


if not TYPE_CHECKING:  # where it would make every misspelt name acceptable

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(module), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
