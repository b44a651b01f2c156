"""Refuse histories that this version would misread: encoded by an unknown codec, or recorded by a newer version."""

from collections.abc import Iterable, Iterator, Sequence

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from waystation.core.errors import ForeignHistory
from waystation.core.fork import TAKE_OVER_ACTIVITY
from waystation.core.ids import signal_not_found
from waystation.core.notice import NOTIFY_ACTIVITY
from waystation.core.review import REVIEW_ACTIVITY
from waystation.core.scope import DELIVERY_ACTIVITY
from waystation.core.scope import WORKFLOW as SCOPE_WORKFLOW
from waystation.core.wire import (
    ARCHIVE_ACTIVITY,
    CHILD_ACTIVITY,
    COLLECT_ACTIVITY,
    MODEL_ACTIVITY,
    SESSION_ARCHIVE_ACTIVITY,
    SESSION_WORKFLOW,
    WORKFLOW,
)
from waystation.history.history_events import patch_of, type_of
from waystation.storage.driver import UNREADABLE, is_reference

MARKS = frozenset({"continue-as-new", "heard", "last-notices", "one-reading", "read-out", "settled", "scopes"})
"""Patch ids of `workflow.patched`, except those for signals whose content was not found."""
ACTIVITIES = frozenset(
    {
        MODEL_ACTIVITY,
        ARCHIVE_ACTIVITY,
        CHILD_ACTIVITY,
        COLLECT_ACTIVITY,
        SESSION_ARCHIVE_ACTIVITY,
        NOTIFY_ACTIVITY,
        REVIEW_ACTIVITY,
        DELIVERY_ACTIVITY,
        TAKE_OVER_ACTIVITY,
    }
)
"""The engine's own; those of tools have a dot in their names."""
WORKFLOWS = frozenset({WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW})
_READABLE = frozenset({b"json/plain", b"json/protobuf", b"binary/null", UNREADABLE["encoding"]})


def check_readable(histories: Iterable[WorkflowHistory], name: str) -> None:
    """Check that this version reads histories correctly.

    Args:
        histories: Decoded by the codec, if there is one.
        name: The file or the id, for the message.

    Raises:
        ForeignHistory: It cannot read them; the message has the remedy.
    """
    for history in histories:
        kind = type_of(history)
        if kind not in WORKFLOWS:
            known = ", ".join(map(repr, sorted(WORKFLOWS)))
            raise ForeignHistory(f"{name} is a history of {kind!r}; Waystation reads those of {known}.")
        if encoding := _encoded(history.events):
            raise ForeignHistory(
                f"{name} has payloads that are encoded as {encoding!r}, so whoever recorded it has a payload codec. "
                "Save it opened, with `temporal workflow show -o json --codec-endpoint URL` or the Web UI's download "
                "with its codec server; or, in Python, give the workers' data converter: "
                "`Recording.read(path, converter=...)`, or a client that has it."
            )
        if found := next(_unknown(history.events), None):
            raise ForeignHistory(
                f"{name} was recorded by a newer version of Waystation: it has {found}, which this version does not "
                "know. Update Waystation here to at least the version of the workers."
            )


def _encoded(events: Sequence[HistoryEvent]) -> str | None:
    """Return how payloads are encoded when that is not as workers without a codec do.

    Of what anybody may have sent, such as the input or a signal, only what workers then made of it tells: an invocation
    whose input is no JSON fails, and its history is one of ours.
    """
    for event in events:
        for payload in _own(event):
            encoding = payload.metadata.get("encoding", b"")
            if encoding not in _READABLE and not is_reference(payload):
                return encoding.decode(errors="replace") or "nothing"
    if any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in events):
        return None
    for payload in events[0].workflow_execution_started_event_attributes.input.payloads:
        encoding = payload.metadata.get("encoding", b"")
        # Nobody has taken it up yet. Encrypted or compressed it may well be what is meant.
        if encoding.startswith(b"binary/") and encoding not in (b"binary/plain", b"binary/null"):
            return encoding.decode(errors="replace")
    return None


def _own(event: HistoryEvent) -> Iterator[Payload]:
    match event.event_type:
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            yield from event.activity_task_scheduled_event_attributes.input.payloads
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            yield from event.workflow_execution_completed_event_attributes.result.payloads
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            yield from event.start_child_workflow_execution_initiated_event_attributes.input.payloads


def _unknown(events: Iterable[HistoryEvent]) -> Iterator[str]:
    """Yield features that only a newer version records."""
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                mark = patch_of(event)
                if mark and mark not in MARKS and not signal_not_found(mark):
                    yield f"the mark {mark!r}"
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                name = event.activity_task_scheduled_event_attributes.activity_type.name
                if "." not in name and name not in ACTIVITIES:
                    yield f"the activity {name!r}"
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                name = event.start_child_workflow_execution_initiated_event_attributes.workflow_type.name
                if name not in WORKFLOWS:
                    yield f"the workflow {name!r}"
