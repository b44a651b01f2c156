"""Read the types, payloads, failures and IDs of single history events."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from google.protobuf.message import Message
from nexusrpc import HandlerErrorType
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload, Payloads, SearchAttributes
from temporalio.api.enums.v1 import EventType as Generated
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import ids
from waystation.core.budget import parse_usage
from waystation.core.contract import EVENT_WORKFLOW, SESSION_WORKFLOW, WORKFLOW, InvocationInput
from waystation.core.errors import ForeignHistory, KeyMissing, StoreFailed
from waystation.core.log import Failure, FailureKind, parse_details
from waystation.core.payload import decode
from waystation.core.projection import Carried, ChildOutcome, facts
from waystation.core.scope_state import SCOPE_WORKFLOW
from waystation.storage import (
    STORE_VARIABLE,
    UNREADABLE,
    describe_missing_key,
    is_reference,
    may_have_reference,
    retrieve_payloads,
)

EventType: Any = SimpleNamespace(**dict(Generated.items()))
COMMANDS = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_TIMER_CANCELED,
        EventType.EVENT_TYPE_MARKER_RECORDED,
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUESTED,
        EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
    }
)
"""Types of the events that record a workflow task's commands."""
_ENCODED_FAILURE = b"Encoded failure"
"""The message that the failure converters of all SDKs leave if they encode the real one."""
SILENT = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED})
"""Types of the events that contain no facts for readers."""


WORKFLOWS = frozenset({WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW})
"""The types of Waystation's workflows."""
_TIMEOUTS: dict[int, FailureKind] = {
    TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "start_to_close",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "schedule_to_start",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "schedule_to_close",
    TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "heartbeat",
}
_FINAL = ("timeout_failure_info", "canceled_failure_info", "application_failure_info")
"""Kinds of failures that are recorded. Of any other failure, its cause is recorded, if it has one."""
_OTHERS = {"terminated_failure_info": "TerminatedError"}
"""Names of the SDK's errors for other failures without a cause."""
MAX_FAILURE_CHARS = 4_096


def failure_of(failure: FailureProto, *, is_over: bool | None = None) -> Failure:
    """Convert the recorded failure of an activity or a called agent to the same `Failure` that the workflow creates.

    `is_over` is whether no time is left for further attempts. If it is None, the failure does not include why the work
    is held.
    """
    while failure.WhichOneof("failure_info") not in _FINAL and failure.HasField("cause"):
        failure = failure.cause
    if failure.HasField("timeout_failure_info"):
        timeout = failure.timeout_failure_info
        started = bool(timeout.last_heartbeat_details.payloads)
        return Failure(kind=_TIMEOUTS.get(timeout.timeout_type, "start_to_close"), started=started)
    if failure.HasField("canceled_failure_info"):
        return Failure(kind="cancelled")
    if failure.HasField("application_failure_info"):
        hold = {} if is_over is None else parse_details(_details(failure), is_over=is_over)
        kind = failure.application_failure_info.type or "Error"
        about = {"kind": "error", "error_type": kind, "message": failure.message[:MAX_FAILURE_CHARS]}
        return Failure.model_validate({**about, **hold})
    if failure.HasField("nexus_handler_failure_info"):
        # The SDK converts other types, and a missing message, in the same way.
        kind = failure.nexus_handler_failure_info.type
        kind = kind if kind in HandlerErrorType.__members__ else HandlerErrorType.INTERNAL.name
        message = failure.message or "Nexus handler error"
        return Failure(kind="error", error_type=kind, message=message[:MAX_FAILURE_CHARS])
    return Failure(kind="error", error_type=_OTHERS.get(failure.WhichOneof("failure_info") or "", "Error"))


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
    result: list[HistoryEvent] = []
    for event in events:
        data = event.SerializeToString()
        if converter.payload_codec is None and not (may_have_reference(data) or _ENCODED_FAILURE in data):
            result.append(event)
            continue
        copied = HistoryEvent()
        copied.CopyFrom(event)
        await decode_message(copied, converter)
        result.append(copied)
    return result


async def decode_message(message: Message, converter: DataConverter) -> None:
    """Fetch and decode all payloads in a message in place, and restore the messages of failures.

    Raises:
        StoreFailed: The store could not be read.
    """
    codec = converter.payload_codec
    for container in find_payloads(message):
        decoded = await retrieve_payloads(list_payloads(container), converter)
        decoded = await codec.decode(decoded) if codec else decoded
        if isinstance(container, Payload):
            container.CopyFrom(decoded[0])
        else:
            del container.payloads[:]
            container.payloads.extend(decoded)
    for part in (message, *_walk(message)):
        if isinstance(part, FailureProto) and part.HasField("encoded_attributes"):
            with suppress(ValueError, AttributeError):  # the key is missing, or another failure converter encoded them
                attributes = decode(part.encoded_attributes.data)
                part.message = str(attributes.get("message", ""))
                part.stack_trace = str(attributes.get("stack_trace", ""))
                part.ClearField("encoded_attributes")


def find_payloads(message: Message) -> Iterator[Payload | Payloads]:
    """Yield all payloads in a message that a client or worker may have encoded, each list of payloads as a whole."""
    return (part for part in _walk(message) if isinstance(part, Payload | Payloads))


def list_payloads(container: Payload | Payloads) -> Sequence[Payload]:
    """Return a single payload as a list, or the payloads of a list."""
    return [container] if isinstance(container, Payload) else container.payloads


def _walk(message: Message) -> Iterator[Message]:
    """Yield the messages inside a message, wherever they are, except search attributes, which the server reads."""
    for descriptor, value in message.ListFields():
        if (kind := descriptor.message_type) is None or kind.full_name == SearchAttributes.DESCRIPTOR.full_name:
            continue
        parts = value.values() if kind.GetOptions().map_entry else value if descriptor.is_repeated else [value]
        for part in parts:
            if isinstance(part, Message):  # the values of a map may be texts
                yield part
                yield from () if isinstance(part, Payloads) else _walk(part)


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


_LOCAL_RESULT = "result"


def payloads_of(event: HistoryEvent) -> Iterator[Payloads]:
    """Yield the payloads of an event that belong to the content of an invocation."""
    kind = event.WhichOneof("attributes") or ""
    place = _CONTENT.get(kind.removesuffix("_event_attributes"))
    details = event.marker_recorded_event_attributes.details
    if _LOCAL_RESULT in details and is_local_activity(event):
        yield details[_LOCAL_RESULT]
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
        case (
            EventType.EVENT_TYPE_NEXUS_OPERATION_FAILED
            | EventType.EVENT_TYPE_NEXUS_OPERATION_CANCELED
            | EventType.EVENT_TYPE_NEXUS_OPERATION_TIMED_OUT
        ):
            return failure_of(get_attributes(event).failure)
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


def starts_target(event: HistoryEvent) -> bool:
    """Return whether an event scheduled code of the user for a call: an activity, a workflow or a Nexus operation."""
    match event.event_type:
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            return ids.parse_target(event.activity_task_scheduled_event_attributes.activity_id) is not None
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes
            return child.workflow_type.name not in (*WORKFLOWS, EVENT_WORKFLOW)
        case kind:
            return bool(kind == EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED)


def read_target_result(payloads: Sequence[Payload]) -> bytes:
    """Return the JSON that a user's activity, workflow or Nexus operation returned, or `null` if it returned nothing.

    Raises:
        StoreFailed: A payload is not in this process's store.
    """
    returns_nothing = all(payload.metadata.get("encoding") == b"binary/null" for payload in payloads)
    return b"null" if returns_nothing else read_json_content(payloads)


def describe_missing(payloads: Iterable[Payload]) -> str | None:
    """Return why this process cannot read an offloaded or encrypted payload, or None if it can read all payloads."""
    for payload in payloads:
        if problem := describe_missing_key(payload):
            return problem
        if payload.metadata.get("encoding") == UNREADABLE["encoding"] or is_reference(payload):
            problem = payload.data.decode(errors="replace") if not is_reference(payload) else "no store is configured."
            return f"{problem} Set --store or {STORE_VARIABLE}."
    return None


def check_content(payloads: Sequence[Payload]) -> None:
    for reason in filter(None, map(describe_missing_key, payloads)):
        raise KeyMissing(reason)
    if problem := describe_missing(payloads):
        raise StoreFailed("an unknown location", problem)


@dataclass(frozen=True, slots=True)
class LocalActivity:
    """The end of a local activity, as the SDK records it in a marker."""

    id: str
    type: str
    number: int
    """Increases with each activity that a run schedules."""
    ended: float
    """In seconds since 1970, or 0 if the activity was canceled before it started."""
    failure: Failure | None


def is_local_activity(event: HistoryEvent) -> bool:
    """Return whether an event is the marker that records the end of a local activity."""
    return event.marker_recorded_event_attributes.marker_name == "core_local_activity"


def read_local_activity(event: HistoryEvent) -> LocalActivity:
    """Read the marker that records the end of a local activity. `payloads_of` yields the activity's result.

    Raises:
        ForeignHistory: The marker is damaged.
    """
    attributes = event.marker_recorded_event_attributes
    try:
        about = decode(attributes.details["data"].payloads[0].data)
        id, kind, number = str(about["activity_id"]), str(about["activity_type"]), int(about["seq"])
        time = about["complete_time"] or {"seconds": 0, "nanos": 0}
        ended = (int(time["seconds"]) * 10**9 + int(time["nanos"])) / 1e9
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ForeignHistory(f"Event {event.event_id} is a damaged marker ({type(error).__name__}).") from None
    failure = failure_of(attributes.failure) if attributes.HasField("failure") else None
    return LocalActivity(id, kind, number, ended, failure)


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
