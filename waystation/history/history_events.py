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

from waystation.core import (
    Carried,
    ChildOutcome,
    Failure,
    FailureKind,
    InvocationInput,
    StoreFailed,
    decode,
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
    """Return the failure of an activity or a called agent, with the same values as in the workflow."""
    if failure.HasField("timeout_failure_info"):
        return Failure(kind=_TIMEOUTS.get(failure.timeout_failure_info.timeout_type, "start_to_close"))
    if failure.HasField("canceled_failure_info"):
        return Failure(kind="cancelled")
    if failure.HasField("application_failure_info"):
        kind = failure.application_failure_info.type or "Error"
        return Failure(kind="error", error_type=kind, message=failure.message[:MAX_FAILURE_CHARS])
    return Failure(kind="error", error_type="Error")


TASK_IN_FLIGHT = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED})
"""Event types of a workflow task. At the end of a history the server may show such events of an attempt that is not
recorded yet, and may reuse their ids."""


async def decode_events(events: Iterable[HistoryEvent], converter: DataConverter) -> Sequence[HistoryEvent]:
    """Return events with payloads decoded by the converter's codec and fetched from its store, if it has them.

    Raises:
        StoreFailed: The store cannot be reached.
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
}
"""The fields of events that hold the content of an invocation."""


def payloads_of(event: HistoryEvent) -> Iterator[Payloads]:
    kind = event.WhichOneof("attributes") or ""
    place = _CONTENT.get(kind.removesuffix("_event_attributes"))
    if place and (payloads := attrgetter(f"{kind}.{place}")(event)).payloads:
        yield payloads


def get_attributes(event: HistoryEvent) -> Any:
    """Return the attributes of an event, whatever its type."""
    kind = event.WhichOneof("attributes")
    return getattr(event, kind) if kind else None


def scheduled_by(attributes: Any) -> int:
    """Return the id of the event that scheduled an activity or initiated a child; 0 if the attributes name none."""
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
"""The failure of an activity, a child or a workflow that follows from the event type alone."""


def loss_of(event: HistoryEvent) -> Failure | None:
    """Return why an activity, a child or a workflow ended without a result; None for all other events."""
    match event.event_type:
        case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED | EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
            return failure_of(get_attributes(event).failure)
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED | EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
            return agent_failure_of(get_attributes(event).failure)
        case kind:
            return _LOST.get(kind)


def read_outcome(last: HistoryEvent) -> ChildOutcome | None:
    """Return the outcome of an invocation, given the last event of a run; None while the invocation runs."""
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        data = read_json_content(last.workflow_execution_completed_event_attributes.result.payloads)
        try:
            return ChildOutcome(result=decode(data))
        except (ValidationError, ValueError):
            return ChildOutcome()
    failure = loss_of(last)
    return ChildOutcome(failure=failure) if failure else None


def carried_by(first: HistoryEvent) -> tuple[InvocationInput, Carried] | None:
    """Return the input of a run and the state it carries over from the previous run, given its first event.

    None if the run does not continue another one.

    Raises:
        ForeignHistory: The input cannot be read.
    """
    started = first.workflow_execution_started_event_attributes
    check_content(started.input.payloads)
    return facts.Started(read_json_payloads(started.input.payloads), continues=bool(continues(first))).carried()


def get_workflow_type(history: WorkflowHistory) -> str:
    """Return the workflow type, given a history that includes its first event."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


def get_time_s(event: HistoryEvent) -> float:
    """Return when an event was recorded, in seconds since 1970."""
    return event.event_time.ToNanoseconds() / 1e9


def find_run_id(events: Iterable[HistoryEvent]) -> str:
    """Return the id of a run, given its first events."""
    run_id = ""
    for event in events:
        started = event.workflow_execution_started_event_attributes.original_execution_run_id
        # The history of a reset run begins with the history of the run before.
        run_id = event.workflow_task_failed_event_attributes.new_run_id or started or run_id
    return run_id


def find_run_ids(events: Iterable[HistoryEvent]) -> list[str]:
    """Return all ids that a run had, given its events: more than one if the run was reset."""
    run_ids = dict.fromkeys(find_run_id([event]) for event in events)
    return [run_id for run_id in run_ids if run_id]


def continues(first: HistoryEvent) -> str | None:
    """Return the id of the previous run, given the first event of a run."""
    return first.workflow_execution_started_event_attributes.continued_execution_run_id or None


def continued_as(last: HistoryEvent) -> str | None:
    """Return the id of the next run, given the last event of a run."""
    return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None


def read_json_payloads(payloads: Iterable[Payload]) -> list[bytes]:
    """Return the JSON of each payload; empty bytes for a payload that is not JSON."""
    # The workflow, too, reads a payload that is not JSON as broken JSON; see workflows/ports.py.
    return [p.data if p.metadata.get("encoding") in (b"json/plain", b"json/protobuf") else b"" for p in payloads]


def read_json_content(payloads: Sequence[Payload]) -> bytes:
    """Return the JSON in payloads written by a worker.

    Raises:
        StoreFailed: A payload is in a store that this process does not have.
    """
    check_content(payloads)
    return b"".join(read_json_payloads(payloads))


def describe_missing(payloads: Iterable[Payload]) -> str | None:
    """Return why a payload is missing: it is in a store that this process does not have. None if all are present."""
    for payload in payloads:
        if payload.metadata.get("encoding") == UNREADABLE["encoding"] or is_reference(payload):
            problem = payload.data.decode(errors="replace") if not is_reference(payload) else "none is configured here."
            return f"{problem} Set --store or {STORE_VARIABLE}."
    return None


def check_content(payloads: Iterable[Payload]) -> None:
    if problem := describe_missing(payloads):
        raise StoreFailed("which large payloads are kept", problem)


def patch_of(event: HistoryEvent) -> str:
    """Return the patch id of a marker of `workflow.patched`; empty for other markers."""
    details = event.marker_recorded_event_attributes.details
    try:
        return str(decode(details["patch-data"].payloads[0].data)["id"]) if "patch-data" in details else ""
    except (ValueError, LookupError, TypeError):
        return ""


def agent_failure_of(failure: FailureProto) -> Failure:
    """Return why a called agent failed, and its token usage."""
    details = []
    with suppress(ValueError):
        details = [decode(data) for data in read_json_payloads(failure.application_failure_info.details.payloads)]
    return failure_of(failure).model_copy(update={"used": parse_usage(details)})
