from waystation.activities.approval_checks import Reviewer, Verifies
from waystation.activities.callbacks import Hooks, close_plugins
from waystation.activities.carry_over import CarryOver
from waystation.activities.contexts import Contexts, tools_for
from waystation.activities.log_cache import HandOver, LogCache
from waystation.activities.model_call.compactor import Compactor
from waystation.activities.model_call.model_caller import ModelCaller
from waystation.activities.model_call.request import definition_digest, request_of, speakers
from waystation.activities.model_choice import DEMO, Models, foreign_names, has_key, unanswered
from waystation.activities.notifications import Channels, Notifier, SignsLinks, channels_of
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.activities.session_history import Conversations, Sessions
from waystation.activities.tool_caller import ToolCaller

__all__ = [
    "DEMO",
    "CarryOver",
    "Channels",
    "Compactor",
    "Contexts",
    "Conversations",
    "HandOver",
    "Hooks",
    "LogCache",
    "ModelCaller",
    "Models",
    "Notifier",
    "Reviewer",
    "ScopeKeeper",
    "Sessions",
    "SignsLinks",
    "ToolCaller",
    "Verifies",
    "channels_of",
    "close_plugins",
    "definition_digest",
    "foreign_names",
    "has_key",
    "request_of",
    "speakers",
    "tools_for",
    "unanswered",
]
