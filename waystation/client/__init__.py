"""Use agents from outside: start invocations, converse, answer pending calls. Modules load on first use."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.client.agent_client import AgentClient
    from waystation.client.approvals import Approvals, Outcome, Page
    from waystation.client.connection import connect, connection_problem, connection_settings
    from waystation.client.invocation_forks import Forks, FoundFork, PreparedFork
    from waystation.client.invocation_handle import (
        Invocation,
        PartialTextReader,
        new_events,
        stream_events,
        stream_file,
        stream_logs,
    )
    from waystation.client.scoped_state import ScopedState
    from waystation.client.search_attributes import (
        SEARCH_ATTRIBUTE_TYPES,
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
    from waystation.client.session_management import DeletedSession, SessionEntry, Sessions
    from waystation.client.token_encryption import Token, TokenEncrypter

__all__ = [
    "SEARCH_ATTRIBUTE_TYPES",
    "AgentClient",
    "Approvals",
    "DeletedSession",
    "Forks",
    "FoundFork",
    "Invocation",
    "Outcome",
    "Page",
    "PartialTextReader",
    "PreparedFork",
    "ScopedState",
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
    "has_search_attributes",
    "new_events",
    "stream_events",
    "stream_file",
    "stream_logs",
    "stream_session",
]

_EXPORTS = {
    "waystation.client.agent_client": "AgentClient",
    "waystation.client.approvals": "Approvals Outcome Page",
    "waystation.client.connection": "connect connection_problem connection_settings",
    "waystation.client.invocation_forks": "Forks FoundFork PreparedFork",
    "waystation.client.invocation_handle": (
        "Invocation PartialTextReader new_events stream_events stream_file stream_logs"
    ),
    "waystation.client.scoped_state": "ScopedState",
    "waystation.client.search_attributes": (
        "SEARCH_ATTRIBUTE_TYPES add_search_attributes fetch_search_attributes has_search_attributes"
    ),
    "waystation.client.session_handle": (
        "Sent Session SessionInvocation SessionUpdate StartedInvocations count_events stream_session"
    ),
    "waystation.client.session_management": "DeletedSession SessionEntry Sessions",
    "waystation.client.token_encryption": "Token TokenEncrypter",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
