"""Use agents from outside: start invocations, converse, answer pending calls. Modules load on first use."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.client.agent_client import AgentClient as AgentClient
    from waystation.client.approvals import Approvals as Approvals
    from waystation.client.approvals import Outcome as Outcome
    from waystation.client.approvals import Page as Page
    from waystation.client.connection import connect as connect
    from waystation.client.connection import connection_problem as connection_problem
    from waystation.client.connection import connection_settings as connection_settings
    from waystation.client.invocation_forks import Forks as Forks
    from waystation.client.invocation_forks import FoundFork as FoundFork
    from waystation.client.invocation_forks import PreparedFork as PreparedFork
    from waystation.client.invocation_handle import Invocation as Invocation
    from waystation.client.scoped_state import ScopedState as ScopedState
    from waystation.client.search_attributes import SEARCH_ATTRIBUTE_TYPES as SEARCH_ATTRIBUTE_TYPES
    from waystation.client.search_attributes import add_search_attributes as add_search_attributes
    from waystation.client.search_attributes import fetch_search_attributes as fetch_search_attributes
    from waystation.client.search_attributes import has_search_attributes as has_search_attributes
    from waystation.client.session_handle import Sent as Sent
    from waystation.client.session_handle import Session as Session
    from waystation.client.session_handle import SessionInvocation as SessionInvocation
    from waystation.client.session_management import DeletedSession as DeletedSession
    from waystation.client.session_management import SessionEntry as SessionEntry
    from waystation.client.session_management import Sessions as Sessions
    from waystation.client.session_stream import SessionUpdate as SessionUpdate
    from waystation.client.session_stream import StartedInvocations as StartedInvocations
    from waystation.client.session_stream import count_events as count_events
    from waystation.client.session_stream import stream_session as stream_session
    from waystation.client.streams import PartialTextReader as PartialTextReader
    from waystation.client.streams import new_events as new_events
    from waystation.client.streams import stream_events as stream_events
    from waystation.client.streams import stream_file as stream_file
    from waystation.client.streams import stream_logs as stream_logs
    from waystation.client.token_encryption import Token as Token
    from waystation.client.token_encryption import TokenEncrypter as TokenEncrypter

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
    "waystation.client.invocation_handle": "Invocation",
    "waystation.client.scoped_state": "ScopedState",
    "waystation.client.search_attributes": (
        "SEARCH_ATTRIBUTE_TYPES add_search_attributes fetch_search_attributes has_search_attributes"
    ),
    "waystation.client.session_handle": "Sent Session SessionInvocation",
    "waystation.client.session_management": "DeletedSession SessionEntry Sessions",
    "waystation.client.session_stream": "SessionUpdate StartedInvocations count_events stream_session",
    "waystation.client.streams": "PartialTextReader new_events stream_events stream_file stream_logs",
    "waystation.client.token_encryption": "Token TokenEncrypter",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
