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
    from waystation.agents import Agent, BaseAgent, LlmAgent
    from waystation.client.agent_client import AgentClient, Invocation
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
    from waystation.core.event import Event, EventActions, ToolConfirmation
    from waystation.core.wire import Budget, InvocationResult, PendingCall, Usage
    from waystation.models import BaseLlm, LlmRequest, LlmResponse

__all__ = [
    "Agent",
    "AgentClient",
    "AgentTool",
    "AlreadyAnswered",
    "AnswerRefused",
    "AnswerUnconfirmed",
    "AuthoringError",
    "BaseAgent",
    "BaseLlm",
    "BaseTool",
    "BaseToolset",
    "Budget",
    "BuiltInCodeExecutionTool",
    "CallbackContext",
    "CrewaiTool",
    "DigestMismatch",
    "EnterpriseWebSearchTool",
    "Event",
    "EventActions",
    "Expired",
    "ForeignHistory",
    "FunctionTool",
    "GoogleMapsGroundingTool",
    "GoogleSearchTool",
    "InvalidAnswer",
    "InvalidInput",
    "Invocation",
    "InvocationError",
    "InvocationResult",
    "LangchainTool",
    "LlmAgent",
    "LlmRequest",
    "LlmResponse",
    "LongRunningFunctionTool",
    "ModelError",
    "ModelOverloaded",
    "ModelRefused",
    "NotAllowed",
    "NotReplayable",
    "PendingCall",
    "ToolConfirmation",
    "ToolContext",
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
    "url_context",
]

_NAMES_BY_MODULE = {
    "tools": (
        "AgentTool BaseTool BaseToolset BuiltInCodeExecutionTool CallbackContext CrewaiTool EnterpriseWebSearchTool "
        "FunctionTool GoogleMapsGroundingTool GoogleSearchTool LangchainTool LongRunningFunctionTool "
        "ToolContext UrlContextTool VertexAiRagRetrieval VertexAiSearchTool built_in_code_execution "
        "enterprise_web_search exit_loop get_user_choice google_maps_grounding google_search request_input "
        "load_artifacts load_memory preload_memory "
        "url_context"
    ),
    "waystation.agents": "Agent BaseAgent LlmAgent",
    "waystation.client.agent_client": "AgentClient Invocation",
    "waystation.core.errors": (
        "AlreadyAnswered AnswerRefused AnswerUnconfirmed AuthoringError DigestMismatch Expired ForeignHistory "
        "InvalidAnswer InvalidInput InvocationError ModelError ModelOverloaded ModelRefused NotAllowed NotReplayable "
        "UnknownAgent UnknownCall WaystationError"
    ),
    "waystation.core.event": "Event EventActions ToolConfirmation",
    "waystation.core.wire": "Budget InvocationResult PendingCall Usage",
    "waystation.models": "BaseLlm LlmRequest LlmResponse",
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
