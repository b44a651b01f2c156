"""Read the types, payloads, failures and IDs of single history events."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType as Generated
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import (
    Carried,
    ChildOutcome,
    Failure,
    FailureKind,
    InvocationInput,
    StoreFailed,
    decode,
    parse_hold,
    parse_usage,
)
from waystation.core.log import facts
from waystation.storage import STORE_VARIABLE, UNREADABLE, is_reference, retrieve_payloads

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
"""Types of the events that record a workflow task's commands."""
SILENT = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED})
"""Types of the events that contain no facts for readers."""


_TIMEOUTS: dict[int, FailureKind] = {
    TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "start_to_close",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "schedule_to_start",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "schedule_to_close",
    TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "heartbeat",
}
MAX_FAILURE_CHARS = 4_096


def failure_of(failure: FailureProto, *, is_over: bool | None = None) -> Failure:
    """Convert the recorded failure of an activity or a called agent to the same `Failure` that the workflow creates.

    `is_over` is whether no time is left for further attempts. If it is None, the failure does not include why the work
    is held.
    """
    if failure.HasField("timeout_failure_info"):
        timeout = failure.timeout_failure_info
        started = bool(timeout.last_heartbeat_details.payloads)
        return Failure(kind=_TIMEOUTS.get(timeout.timeout_type, "start_to_close"), started=started)
    if failure.HasField("canceled_failure_info"):
        return Failure(kind="cancelled")
    if failure.HasField("application_failure_info"):
        hold = {} if is_over is None else parse_hold(_details(failure), is_over=is_over)
        kind = failure.application_failure_info.type or "Error"
        about = {"kind": "error", "error_type": kind, "message": failure.message[:MAX_FAILURE_CHARS]}
        return Failure.model_validate({**about, **hold})
    return Failure(kind="error", error_type="Error")


def _details(failure: FailureProto) -> list[Any]:
    with suppress(ValueError):
        return [decode(data) for data in read_json_payloads(failure.application_failure_info.details.payloads)]
    return []


TASK_IN_FLIGHT = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED})
"""Types of the events of a workflow task in flight. At the end of a history, the server may return such events before
they are recorded, and may later give their IDs to other events."""


async def decode_events(events: Iterable[HistoryEvent], converter: DataConverter) -> Sequence[HistoryEvent]:
    """Return events after fetching offloaded payloads from the converter's store and decoding them with its codec.

    The store and the codec are both optional.

    Raises:
        StoreFailed: The store could not be read.
    """
    codec = converter.payload_codec
    result = []
    for event in events:
        if codec is None and not any(is_reference(p) for payloads in payloads_of(event) for p in payloads.payloads):
            result.append(event)
            continue
        copied = HistoryEvent()
        copied.CopyFrom(event)
        for payloads in payloads_of(copied):
            decoded = await retrieve_payloads(payloads.payloads, converter)
            if codec is not None:
                decoded = await codec.decode(decoded)
            del payloads.payloads[:]
            payloads.payloads.extend(decoded)
        result.append(copied)
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
    "activity_task_failed": "failure.application_failure_info.details",
}
"""For each kind of event, the field with the payloads that belong to the content of an invocation."""


def payloads_of(event: HistoryEvent) -> Iterator[Payloads]:
    kind = event.WhichOneof("attributes") or ""
    place = _CONTENT.get(kind.removesuffix("_event_attributes"))
    if place and (payloads := attrgetter(f"{kind}.{place}")(event)).payloads:
        yield payloads


def get_attributes(event: HistoryEvent) -> Any:
    """Return the attributes of an event of any type, or None if it has no attributes."""
    kind = event.WhichOneof("attributes")
    return getattr(event, kind) if kind else None


def scheduled_by(attributes: Any) -> int:
    """Return the ID of the event that scheduled an activity or initiated a child workflow.

    Return 0 if the attributes do not refer to such an event.
    """
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
"""Failures of activities, child workflows and workflows that can be derived from the event type alone."""


def loss_of(event: HistoryEvent) -> Failure | None:
    """Return why an activity, a child workflow or a workflow ended without a result, or None for any other event."""
    match event.event_type:
        case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED | EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
            attributes = get_attributes(event)
            return failure_of(attributes.failure, is_over=attributes.retry_state == RetryState.RETRY_STATE_TIMEOUT)
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED | EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
            return agent_failure_of(get_attributes(event).failure)
        case kind:
            return _LOST.get(kind)


def read_outcome(last: HistoryEvent) -> ChildOutcome | None:
    """Return the outcome of an invocation from the last event of a run, or None if the invocation has not ended.

    The outcome is empty if the result cannot be parsed.

    Raises:
        StoreFailed: The result is not in this process's store.
    """
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        data = read_json_content(last.workflow_execution_completed_event_attributes.result.payloads)
        try:
            return ChildOutcome(result=decode(data))
        except (ValidationError, ValueError):
            return ChildOutcome()
    failure = loss_of(last)
    return ChildOutcome(failure=failure) if failure else None


def carried_by(first: HistoryEvent) -> tuple[InvocationInput, Carried] | None:
    """Return a run's input and the state carried over from the previous run, or None if there is no previous run.

    Args:
        first: The first event of the run.

    Raises:
        ForeignHistory: The input is damaged or was recorded by a newer version.
        StoreFailed: The input is not in this process's store.
    """
    started = first.workflow_execution_started_event_attributes
    check_content(started.input.payloads)
    return facts.Started(read_json_payloads(started.input.payloads), continues=bool(continues(first))).carried()


def get_workflow_type(history: WorkflowHistory) -> str:
    """Return the workflow type. The history must start with the first event of the run."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


def get_time_s(event: HistoryEvent) -> float:
    """Return the time of an event in seconds since 1970."""
    return event.event_time.ToNanoseconds() / 1e9


def find_run_id(events: Iterable[HistoryEvent]) -> str:
    """Return the run ID that the first events of a run contain, or an empty string if they do not contain it."""
    run_id = ""
    for event in events:
        started = event.workflow_execution_started_event_attributes.original_execution_run_id
        # After a reset, the history starts with the events of the previous run. A failed task has the new run ID.
        run_id = event.workflow_task_failed_event_attributes.new_run_id or started or run_id
    return run_id


def find_run_ids(events: Iterable[HistoryEvent]) -> list[str]:
    """Return every run ID that the events of a run contain. There are several if the run was reset."""
    run_ids = dict.fromkeys(find_run_id([event]) for event in events)
    return [run_id for run_id in run_ids if run_id]


def continues(first: HistoryEvent) -> str | None:
    """Return the ID of the previous run from the first event of a run, or None if there is no previous run."""
    return first.workflow_execution_started_event_attributes.continued_execution_run_id or None


def continued_as(last: HistoryEvent) -> str | None:
    """Return the ID of the next run from the last event of a run, or None if the run did not continue as new."""
    return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None


def read_json_payloads(payloads: Iterable[Payload]) -> list[bytes]:
    """Return the JSON in each payload. For other encodings, return empty bytes, which fail to parse."""
    # The workflow reads payloads in the same way; see `data_of` in workflows/ports.py.
    return [p.data if p.metadata.get("encoding") in (b"json/plain", b"json/protobuf") else b"" for p in payloads]


def read_json_content(payloads: Sequence[Payload]) -> bytes:
    """Return the joined JSON of payloads that a worker wrote.

    Raises:
        StoreFailed: A payload is not in this process's store.
    """
    check_content(payloads)
    return b"".join(read_json_payloads(payloads))


def describe_missing(payloads: Iterable[Payload]) -> str | None:
    """Return why an offloaded payload is missing from this process, or None if all payloads are present."""
    for payload in payloads:
        if payload.metadata.get("encoding") == UNREADABLE["encoding"] or is_reference(payload):
            problem = payload.data.decode(errors="replace") if not is_reference(payload) else "no store is configured."
            return f"{problem} Set --store or {STORE_VARIABLE}."
    return None


def check_content(payloads: Iterable[Payload]) -> None:
    if problem := describe_missing(payloads):
        raise StoreFailed("an unknown location", problem)


def patch_of(event: HistoryEvent) -> str:
    """Return the patch ID of a marker that `workflow.patched` recorded, or an empty string for any other marker."""
    details = event.marker_recorded_event_attributes.details
    try:
        return str(decode(details["patch-data"].payloads[0].data)["id"]) if "patch-data" in details else ""
    except (ValueError, LookupError, TypeError):
        return ""


def agent_failure_of(failure: FailureProto) -> Failure:
    """Return the failure of a called agent, including the agent's token usage if it was recorded."""
    return failure_of(failure).model_copy(update={"used": parse_usage(_details(failure))})
