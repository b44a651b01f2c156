from waystation.client.agent_client import AgentClient
from waystation.client.agent_directory import AgentDirectory
from waystation.client.approvals import Approvals, Outcome, Page, is_quotable
from waystation.client.connection import connect, connection_problem, connection_settings
from waystation.client.held_invocations import HeldInvocation, HeldInvocations
from waystation.client.invocation_forks import Forks, FoundFork, PreparedFork
from waystation.client.invocation_handle import (
    Invocation,
    PartialTextReader,
    new_events,
    stream_events,
    stream_file,
    stream_logs,
)
from waystation.client.recorded_stores import find_store_differences
from waystation.client.search_attributes import (
    SEARCH_ATTRIBUTE_TYPES,
    SearchAttributeMonitor,
    add_search_attributes,
    fetch_search_attributes,
    has_search_attributes,
)
from waystation.client.session_handle import (
    Sent,
    Session,
    SessionInvocation,
    SessionUpdate,
    StartedInvocations,
    count_events,
    stream_session,
)
from waystation.client.session_management import DeletedSession, ScopedState, SessionEntry, Sessions
from waystation.client.store_pruning import Pruned, prune_stores
from waystation.client.token_encryption import Token, TokenEncrypter

__all__ = [
    "SEARCH_ATTRIBUTE_TYPES",
    "AgentClient",
    "AgentDirectory",
    "Approvals",
    "DeletedSession",
    "Forks",
    "FoundFork",
    "HeldInvocation",
    "HeldInvocations",
    "Invocation",
    "Outcome",
    "Page",
    "PartialTextReader",
    "PreparedFork",
    "Pruned",
    "ScopedState",
    "SearchAttributeMonitor",
    "Sent",
    "Session",
    "SessionEntry",
    "SessionInvocation",
    "SessionUpdate",
    "Sessions",
    "StartedInvocations",
    "Token",
    "TokenEncrypter",
    "add_search_attributes",
    "connect",
    "connection_problem",
    "connection_settings",
    "count_events",
    "fetch_search_attributes",
    "find_store_differences",
    "has_search_attributes",
    "is_quotable",
    "new_events",
    "prune_stores",
    "stream_events",
    "stream_file",
    "stream_logs",
    "stream_session",
]
