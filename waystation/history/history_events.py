"""Read single history events: their types, payloads, failures and ids."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType as Generated
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import Carried, ChildOutcome, Failure, FailureKind, InvocationInput, StoreFailed, decode, used_in
from waystation.core.log import facts
from waystation.storage import STORE_VARIABLE, UNREADABLE, is_reference, retrieved

EventType: Any = SimpleNamespace(**dict(Generated.items()))
COMMANDS = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_TIMER_CANCELED,
        EventType.EVENT_TYPE_MARKER_RECORDED,
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
    }
)
"""Events recorded for the commands of a workflow task."""
SILENT = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED})
"""Events that readers skip."""


_TIMEOUTS: dict[int, FailureKind] = {
    TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "start_to_close",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "schedule_to_start",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "schedule_to_close",
    TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "heartbeat",
}
MAX_FAILURE_CHARS = 4_096


def failure_of(failure: FailureProto) -> Failure:
    """Return why an activity or a child ended, in the words the workflow's exceptions have for it."""
    if failure.HasField("timeout_failure_info"):
        return Failure(kind=_TIMEOUTS.get(failure.timeout_failure_info.timeout_type, "start_to_close"))
    if failure.HasField("canceled_failure_info"):
        return Failure(kind="cancelled")
    if failure.HasField("application_failure_info"):
        kind = failure.application_failure_info.type or "Error"
        return Failure(kind="error", error_type=kind, message=failure.message[:MAX_FAILURE_CHARS])
    return Failure(kind="error", error_type="Error")


TASK_UNDER_WAY = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED})
"""At the end of a history these may belong to an attempt that is not recorded yet: the server shows them all the same,
and may reuse their ids."""


async def decode_events(events: Iterable[HistoryEvent], converter: DataConverter) -> Sequence[HistoryEvent]:
    """Return events with their payloads as they were before the converter's codec and storage, if it has them.

    Raises:
        StoreFailed: Offloaded payloads cannot be looked for.
    """
    codec = converter.payload_codec
    result = []
    for event in events:
        if codec is None and not any(is_reference(p) for held in payloads_of(event) for p in held.payloads):
            result.append(event)
            continue
        plain = HistoryEvent()
        plain.CopyFrom(event)
        for payloads in payloads_of(plain):
            opened = await retrieved(payloads.payloads, converter)
            if codec is not None:
                opened = await codec.decode(opened)
            del payloads.payloads[:]
            payloads.payloads.extend(opened)
        result.append(plain)
    return result


_CONTENT = {
    "workflow_execution_started": "input",
    "workflow_execution_signaled": "input",
    "activity_task_scheduled": "input",
    "start_child_workflow_execution_initiated": "input",
    "signal_external_workflow_execution_initiated": "input",
    "workflow_execution_continued_as_new": "input",
    "activity_task_completed": "result",
    "workflow_execution_completed": "result",
    "child_workflow_execution_completed": "result",
    "workflow_execution_update_accepted": "accepted_request.input.args",
    "workflow_execution_update_admitted": "request.input.args",
    "workflow_execution_failed": "failure.application_failure_info.details",
    "child_workflow_execution_failed": "failure.application_failure_info.details",
}
"""Where events hold an invocation's content."""


def payloads_of(event: HistoryEvent) -> Iterator[Payloads]:
    """Yield what an event holds of an invocation's content."""
    kind = event.WhichOneof("attributes") or ""
    place = _CONTENT.get(kind.removesuffix("_event_attributes"))
    if place and (held := attrgetter(f"{kind}.{place}")(event)).payloads:
        yield held


def attributes_of(event: HistoryEvent) -> Any:
    """Return the attributes of an event, of whichever type it is."""
    kind = event.WhichOneof("attributes")
    return getattr(event, kind) if kind else None


def scheduled_by(attributes: Any) -> int:
    """Return the id of the event that scheduled an activity or initiated a child; 0 for attributes that name none."""
    return getattr(attributes, "scheduled_event_id", 0) or getattr(attributes, "initiated_event_id", 0)


_LOST = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: Failure(kind="cancelled"),
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: Failure(
        kind="error", error_type="WorkflowAlreadyStartedError"
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: Failure(kind="cancelled"),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: Failure(kind="start_to_close"),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: Failure(kind="error", error_type="TerminatedError"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: Failure(kind="cancelled"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: Failure(kind="start_to_close"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: Failure(kind="error", error_type="TerminatedError"),
}
"""Events whose type alone says why an activity, a child or a workflow ended without a result."""


def loss_of(event: HistoryEvent) -> Failure | None:
    """Return why an activity, a child or a workflow ended without a result; None for all other events."""
    match event.event_type:
        case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED | EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
            return failure_of(attributes_of(event).failure)
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED | EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
            return agent_failure_of(attributes_of(event).failure)
        case kind:
            return _LOST.get(kind)


def outcome_of(last: HistoryEvent) -> ChildOutcome | None:
    """Return the outcome of an invocation, given the last event of a run; None while it is running."""
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        data = read_content(last.workflow_execution_completed_event_attributes.result.payloads)
        try:
            return ChildOutcome(result=decode(data))
        except (ValidationError, ValueError):
            return ChildOutcome()
    failure = loss_of(last)
    return ChildOutcome(failure=failure) if failure else None


def carried_by(first: HistoryEvent) -> tuple[InvocationInput, Carried] | None:
    """Return a run's input and what it has from the run that it continues, given its first event.

    Raises:
        ForeignHistory: It cannot be read.
    """
    started = first.workflow_execution_started_event_attributes
    check_content(started.input.payloads)
    return facts.Started(json_data(started.input.payloads), continues=bool(continues(first))).carried()


def type_of(history: WorkflowHistory) -> str:
    """Return the type of a workflow, given a history that begins at its beginning."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


def seconds_of(event: HistoryEvent) -> float:
    """Return when an event was recorded, in seconds since 1970."""
    return event.event_time.ToNanoseconds() / 1e9


def run_id_of(events: Iterable[HistoryEvent]) -> str:
    """Return the id of a run, given its first events."""
    found = ""
    for event in events:
        started = event.workflow_execution_started_event_attributes.original_execution_run_id
        # The history of a run that was reset begins with that of the run before.
        found = event.workflow_task_failed_event_attributes.new_run_id or started or found
    return found


def run_ids_of(events: Iterable[HistoryEvent]) -> list[str]:
    """Return the ids that a run had, given its events: more than one if it was reset, for each stretch its own."""
    each = dict.fromkeys(run_id_of([event]) for event in events)
    return [run_id for run_id in each if run_id]


def continues(first: HistoryEvent) -> str | None:
    """Return the id of the run that one continues, given its first event."""
    return first.workflow_execution_started_event_attributes.continued_execution_run_id or None


def continued_as(last: HistoryEvent) -> str | None:
    """Return the id of the run that continues one, given its last event."""
    return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None


def json_data(payloads: Iterable[Payload]) -> list[bytes]:
    """Return the JSON of each payload; empty bytes for a payload that is not JSON."""
    # As in workflows/ports.py: what is not JSON reads as broken JSON, on both sides alike.
    return [p.data if p.metadata.get("encoding") in (b"json/plain", b"json/protobuf") else b"" for p in payloads]


def read_content(payloads: Sequence[Payload]) -> bytes:
    """Return the JSON in payloads that a worker wrote.

    Raises:
        StoreFailed: It is in a store that this process does not have.
    """
    check_content(payloads)
    return b"".join(json_data(payloads))


def lacking_in(payloads: Iterable[Payload]) -> str | None:
    """Return why some payload is missing: it is in a store that this process does not have. None when all are there."""
    for payload in payloads:
        if payload.metadata.get("encoding") == UNREADABLE["encoding"] or is_reference(payload):
            problem = payload.data.decode(errors="replace") if not is_reference(payload) else "none is configured here."
            return f"{problem} The remedy is --store, or {STORE_VARIABLE}."
    return None


def check_content(payloads: Iterable[Payload]) -> None:
    if problem := lacking_in(payloads):
        raise StoreFailed("which large payloads are kept", problem)


def patch_of(event: HistoryEvent) -> str:
    """Return the patch id of a marker of `workflow.patched`; empty for other markers."""
    details = event.marker_recorded_event_attributes.details
    try:
        return str(decode(details["patch-data"].payloads[0].data)["id"]) if "patch-data" in details else ""
    except (ValueError, LookupError, TypeError):
        return ""


def agent_failure_of(failure: FailureProto) -> Failure:
    """Return why a called agent failed, and what it used."""
    details = []
    with suppress(ValueError):
        details = [decode(data) for data in json_data(failure.application_failure_info.details.payloads)]
    return failure_of(failure).model_copy(update={"used": used_in(details)})
