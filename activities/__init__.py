"""Temporal activities for model calls, tool calls and the engine's internal work."""

from waystation.activities.activity_attempt import (
    EventLoopBlocked,
    blocked_failure,
    current_activity,
    track_activity,
)
from waystation.activities.answer_verification import AnswerVerifier
from waystation.activities.callbacks import Hooks, close_plugins
from waystation.activities.carry_over import CarryOver
from waystation.activities.contexts import Contexts, tools_for
from waystation.activities.log_cache import CacheInterceptor, LogCache, current_log
from waystation.activities.model_call.compactor import Compactor
from waystation.activities.model_call.metered_model import Meters
from waystation.activities.model_call.model_caller import ModelCaller
from waystation.activities.model_call.request import build_request, definition_digest, request_processors
from waystation.activities.model_choice import (
    DEMO,
    Models,
    find_agents_without_model,
    find_foreign_model_names,
    has_api_key,
    list_model_warnings,
)
from waystation.activities.notifications import Channels, LinkSigner, Notifier, read_channels
from waystation.activities.proofs import Keys, ProofFactory, TokenVerifier
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.activities.session_history import ConversationReader, SessionHistories
from waystation.activities.task_pushes import PushDelivery
from waystation.activities.tool_caller import ToolCaller

__all__ = [
    "DEMO",
    "AnswerVerifier",
    "CacheInterceptor",
    "CarryOver",
    "Channels",
    "Compactor",
    "Contexts",
    "ConversationReader",
    "EventLoopBlocked",
    "Hooks",
    "Keys",
    "LinkSigner",
    "LogCache",
    "Meters",
    "ModelCaller",
    "Models",
    "Notifier",
    "ProofFactory",
    "PushDelivery",
    "ScopeKeeper",
    "SessionHistories",
    "TokenVerifier",
    "ToolCaller",
    "blocked_failure",
    "build_request",
    "close_plugins",
    "current_activity",
    "current_log",
    "definition_digest",
    "find_agents_without_model",
    "find_foreign_model_names",
    "has_api_key",
    "list_model_warnings",
    "read_channels",
    "request_processors",
    "tools_for",
    "track_activity",
]
