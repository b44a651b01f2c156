"""The client: start invocations, talk to sessions and answer pending calls."""

from waystation.client.agent_client import AgentClient
from waystation.client.agent_directory import DETAILS, AgentDetails, AgentDirectory, Tools
from waystation.client.approvals import ApprovalFilter, Approvals, Outcome, Page, is_quotable
from waystation.client.connection import (
    are_credentials_refused,
    connect,
    connection_problem,
    connection_settings,
    is_address_configured,
)
from waystation.client.held_invocations import HeldInvocation, HeldInvocations
from waystation.client.invocation_description import InvocationDescription
from waystation.client.invocation_forks import Forks, FoundFork, PreparedFork
from waystation.client.invocation_handle import (
    Invocation,
    PartialTextReader,
    new_events,
    stream_events,
    stream_file,
    stream_logs,
)
from waystation.client.invocation_list import STATUSES, InvocationEntry, Invocations, fold_called, read_entry
from waystation.client.recorded_stores import find_store_differences
from waystation.client.schedules import ScheduledStart, Schedules, make_times
from waystation.client.search_attributes import (
    SEARCH_ATTRIBUTE_TYPES,
    SearchAttributeMonitor,
    add_search_attributes,
    check_search_attributes,
    has_search_attributes,
    wait_until_accepted,
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
from waystation.client.session_management import (
    DeletedSession,
    ScopedState,
    SessionActivity,
    SessionEntry,
    Sessions,
    parse_session_id,
    read_session_entry,
)
from waystation.client.store_pruning import Pruned, prune_stores
from waystation.client.tenant_keys import DeletedTenantKeys, delete_tenant_keys
from waystation.client.token_encryption import Token, TokenEncrypter
from waystation.client.user_deletion import DeletedUser, UserStore

__all__ = [
    "DETAILS",
    "SEARCH_ATTRIBUTE_TYPES",
    "STATUSES",
    "AgentClient",
    "AgentDetails",
    "AgentDirectory",
    "ApprovalFilter",
    "Approvals",
    "DeletedSession",
    "DeletedTenantKeys",
    "DeletedUser",
    "Forks",
    "FoundFork",
    "HeldInvocation",
    "HeldInvocations",
    "Invocation",
    "InvocationDescription",
    "InvocationEntry",
    "Invocations",
    "Outcome",
    "Page",
    "PartialTextReader",
    "PreparedFork",
    "Pruned",
    "ScheduledStart",
    "Schedules",
    "ScopedState",
    "SearchAttributeMonitor",
    "Sent",
    "Session",
    "SessionActivity",
    "SessionEntry",
    "SessionInvocation",
    "SessionUpdate",
    "Sessions",
    "StartedInvocations",
    "Token",
    "TokenEncrypter",
    "Tools",
    "UserStore",
    "add_search_attributes",
    "are_credentials_refused",
    "check_search_attributes",
    "connect",
    "connection_problem",
    "connection_settings",
    "count_events",
    "delete_tenant_keys",
    "find_store_differences",
    "fold_called",
    "has_search_attributes",
    "is_address_configured",
    "is_quotable",
    "make_times",
    "new_events",
    "parse_session_id",
    "prune_stores",
    "read_entry",
    "read_session_entry",
    "stream_events",
    "stream_file",
    "stream_logs",
    "stream_session",
    "wait_until_accepted",
]
