"""Read histories from a server or from files: single events, whole invocations, sessions and scopes."""

from waystation.history.activity_attempts import Attempts, Retry, attempts_of, failed_workflow_tasks, fetch_retries
from waystation.history.foreign_history import check_readable
from waystation.history.history_events import (
    COMMANDS,
    EventType,
    continued_as,
    decode_events,
    outcome_of,
    read_arguments,
    read_content,
    run_id_of,
    run_ids_of,
    seconds_of,
    type_of,
)
from waystation.history.history_fetch import HistoryPoll, fetch_events_after
from waystation.history.history_files import SavedHistory, format_saved_history, read_history_file
from waystation.history.invocation_reader import HistoryReader, log_of
from waystation.history.invocation_runs import (
    carried_log,
    decode_histories,
    fetch_log_before,
    fetch_runs,
    fetch_saved_history,
    follow_log,
    log_from_runs,
    own_runs,
)
from waystation.history.scope_reader import ScopeReader
from waystation.history.session_reader import SessionReader
from waystation.history.session_runs import WorkflowRun, describe_workflow, find_session_runs, is_not_found

__all__ = [
    "COMMANDS",
    "Attempts",
    "EventType",
    "HistoryPoll",
    "HistoryReader",
    "Retry",
    "SavedHistory",
    "ScopeReader",
    "SessionReader",
    "WorkflowRun",
    "attempts_of",
    "carried_log",
    "check_readable",
    "continued_as",
    "decode_events",
    "decode_histories",
    "describe_workflow",
    "failed_workflow_tasks",
    "fetch_events_after",
    "fetch_log_before",
    "fetch_retries",
    "fetch_runs",
    "fetch_saved_history",
    "find_session_runs",
    "follow_log",
    "format_saved_history",
    "is_not_found",
    "log_from_runs",
    "log_of",
    "outcome_of",
    "own_runs",
    "read_arguments",
    "read_content",
    "read_history_file",
    "run_id_of",
    "run_ids_of",
    "seconds_of",
    "type_of",
]
