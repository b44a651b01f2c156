"""Conversions between Temporal payloads and the bytes and log entries that the core uses.

Workflows receive payloads undecoded, because Temporal would block the workflow or silently drop the message if it could
not decode a typed parameter. Instead, the core parses the payloads, and invalid data becomes a recorded entry or a
typed failure.
"""

from collections.abc import Awaitable, Callable, Sequence

from nexusrpc import HandlerError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    NexusOperationError,
    RetryState,
    TimeoutError,
    TimeoutType,
    WorkflowAlreadyStartedError,
)

from waystation.core import ids
from waystation.core.approval import Origin
from waystation.core.contract import Event
from waystation.core.log import Body, EntryRef, Failure, FailureKind, Log, parse_details
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import Carried

_JSON = {"encoding": b"json/plain"}
_READABLE = (b"json/plain", b"json/protobuf")
_UNREADABLE = b"waystation/unreadable"
"""The encoding of the payload that `waystation.storage.driver` returns if a referenced payload is not in the store."""
_ENCRYPTED = b"binary/encrypted"
"""The encoding of a payload for which this worker has no key; see `waystation.storage.encryption`."""

_DELETED = b"waystation/deleted"
"""The encoding of a payload whose key was deleted with the data of its user."""

MAX_FAILURE_CHARS = 4_096
MAX_QUERY_BYTES = 1_500_000

HAND_OVER = "waystation.hand_over"
"""Name of the external function with which a workflow caches log entries for the activities in its process."""

TRACE = "waystation.trace"
"""Name of the external function with which a workflow passes its log to the export of spans."""

MEASURE = "waystation.measure"
"""Name of the external function with which a workflow passes its log to the export of metrics."""

COUNT_REFUSED = "waystation.count_refused"
"""Name of the external function with which a workflow counts an answer that an update's validator refuses. Nothing else
shows that answer, because the server does not record it."""

TIMEOUT_KINDS: dict[TimeoutType, FailureKind] = {
    TimeoutType.START_TO_CLOSE: "start_to_close",
    TimeoutType.SCHEDULE_TO_START: "schedule_to_start",
    TimeoutType.SCHEDULE_TO_CLOSE: "schedule_to_close",
    TimeoutType.HEARTBEAT: "heartbeat",
}


class ResultElsewhere(Exception):
    """A payload is not in this worker's store, or this worker lacks its key. This fails the workflow task but not the
    workflow.

    The server retries the task until a worker with the right store and keys picks it up.
    """


def data_of(payload: Payload) -> bytes:
    """Return the JSON in a payload. For other encodings, return empty bytes, which fail to parse."""
    return payload.data if payload.metadata.get("encoding") in _READABLE else b""


def result_of(payload: Payload) -> bytes:
    """Return the JSON of an activity's or child workflow's result.

    Raises:
        ResultElsewhere: The result is not in this worker's store, or this worker lacks its key.
    """
    if problem := why_missing(payload):
        raise ResultElsewhere(f"A payload {problem}")
    return data_of(payload)


def why_missing(payload: Payload) -> str | None:
    """Return why this worker cannot read a payload that other workers may be able to read, and the remedy."""
    if payload.metadata.get("encoding") == _UNREADABLE:
        if cause := payload.data[:300].decode(errors="replace"):  # from the store, or from the sender of the payload
            return f"cannot be read: {cause.rstrip('.')}."
        return "is not in this worker's store. All workers must share one store (--store)."
    if payload.metadata.get("encoding") == _DELETED:
        return "is [deleted], because its key was deleted with the data of its user. Terminate this workflow."
    if key_id := find_key_id(payload):
        if key_id.startswith("user-"):
            remedy = "Set WAYSTATION_USER_KEYS to the store of user keys that all workers share."
            return f"is encrypted with the user key {key_id!r}, which is missing. {remedy}"
        remedy = "Add it to the file that WAYSTATION_ENCRYPTION_KEYS names, and restart the worker."
        return f"is encrypted with the key {key_id!r}, which this worker does not have. {remedy}"
    return None


def find_key_id(payload: Payload) -> str | None:
    """Return the ID of the missing key of a payload that could not be decrypted, or None for any other payload."""
    is_encrypted = payload.metadata.get("encoding") == _ENCRYPTED
    return payload.metadata.get("encryption-key-id", b"")[:80].decode(errors="replace") if is_encrypted else None


def target_result_of(value: RawValue | None) -> bytes:
    """Return the JSON that a user's activity, workflow or Nexus operation returned, or `null` if it returned nothing.

    Raises:
        ResultElsewhere: The result is not in this worker's store.
    """
    if value is None or value.payload.metadata.get("encoding") == b"binary/null":
        return b"null"
    return result_of(value.payload)


def all_data(values: Sequence[RawValue]) -> list[bytes]:
    """Return the JSON in each of the arguments."""
    return [data_of(value.payload) for value in values]


def is_elsewhere(value: RawValue) -> bool:
    """Return whether this worker lacks the store or the key that an argument needs."""
    return why_missing(value.payload) is not None


def input_data(params: RawValue) -> bytes:
    """Return the JSON of a run's input. If a client sent the input and it is not in the store, return empty bytes.

    Raises:
        ResultElsewhere: An earlier run or the parent workflow offloaded the input, and it is not in this worker's
            store. Or this worker lacks its key.
    """
    info = workflow.info()
    if info.continued_run_id or info.parent or find_key_id(params.payload):
        return result_of(params.payload)
    return data_of(params.payload)


def signal_data(values: Sequence[RawValue], number: int) -> list[bytes] | None:
    """Return the JSON in the arguments of signal `number`, or None if they were not in the first worker's store.

    Anyone can send a reference to a payload that does not exist, and the history does not show whether the worker found
    the payload. A patch marker therefore records that the arguments were not found, and every replay follows that
    marker.

    Raises:
        ResultElsewhere: The first worker found the arguments, but they are not in this worker's store.
    """
    lacking = any(is_elsewhere(value) for value in values)
    if observe(ids.not_found(number), lambda: lacking):
        return None
    for problem in filter(None, (why_missing(value.payload) for value in values)):
        raise ResultElsewhere(f"A signal {problem}")
    return all_data(values)


def observe(mark: str, condition: Callable[[], bool]) -> bool:
    """Return whether `condition` holds for the worker that first runs this code. Replays return the same value.

    If the condition holds, the history records it as the patch marker `mark`, which must be unique in the run.
    """
    if workflow.unsafe.is_replaying():
        return workflow.patched(mark)
    return condition() and workflow.patched(mark)


def raw(data: bytes) -> RawValue:
    """Return JSON as a payload that any Temporal client can read."""
    return RawValue(Payload(metadata=_JSON, data=data))


NO_ARGUMENT = raw(b"null")
"""Default for a missing argument, so that the sender receives Waystation's refusal instead of a decoding error."""


def paged(events: Sequence[Event], start: int) -> list[JsonObject]:
    """Return the events from index `start` onward, as many as fit into one query result."""
    page: list[JsonObject] = []
    size = 0
    for event in events[max(start, 0) :]:
        page.append(event.to_json())
        size += len(encode(page[-1]))
        if size > MAX_QUERY_BYTES:
            break
    return page


def hand_over(ref: EntryRef, body: Body | Carried, size: int) -> None:
    """Cache an entry for the activities in this process, so that they do not have to read it from the history.

    Workflows never read this cache. Use it only for entries that are identical in every attempt at a workflow task. An
    update qualifies only if its reference contains a digest: if the task is lost, the update may arrive again under a
    different number.
    """
    cache = workflow.extern_functions().get(HAND_OVER)
    if cache and not workflow.unsafe.is_replaying():
        info = workflow.info()
        parent = (info.parent.workflow_id, info.parent.run_id) if info.parent else None
        origin = Origin(info.workflow_type, info.first_execution_run_id, parent)
        cache(info.workflow_id, info.run_id, origin, ref, body, size)


def trace(log: Log, *, over: bool) -> None:
    """Pass the log of a run that waits, or is over, to the export of spans if this worker has one."""
    receive = workflow.extern_functions().get(TRACE)
    if receive and not workflow.unsafe.is_replaying():
        receive(workflow.info().run_id, log, now(), over)


def measure(log: Log) -> None:
    """Pass the log of a run to the export of metrics if this worker has one.

    Also do this on replay. The export then knows which entries have been counted already.
    """
    if receive := workflow.extern_functions().get(MEASURE):
        receive(workflow.info().run_id, log, workflow.unsafe.is_replaying())


def count_refused(reason: str) -> None:
    """Count an answer that an update's validator refuses if this worker exports metrics."""
    if count := workflow.extern_functions().get(COUNT_REFUSED):
        count(reason)


def failure_of(
    error: ActivityError | ChildWorkflowError | NexusOperationError | WorkflowAlreadyStartedError,
) -> Failure:
    """Return the failure to record for a failed activity, child workflow or Nexus operation.

    If a workflow of the user failed because its own activity failed, for example, return the failure of that activity.
    """
    cause: BaseException | None = error.cause
    while cause and cause.__cause__ and not isinstance(cause, TimeoutError | CancelledError | ApplicationError):
        cause = cause.__cause__
    match cause:
        case TimeoutError():
            kind = TIMEOUT_KINDS.get(cause.type or TimeoutType.START_TO_CLOSE, "start_to_close")
            return Failure(kind=kind, started=bool(cause.last_heartbeat_details))
        case CancelledError():
            return Failure(kind="cancelled")
        case ApplicationError():
            about = {"error_type": cause.type or "Error", "message": cause.message[:MAX_FAILURE_CHARS]}
            hold: JsonObject = {}
            if isinstance(error, ActivityError):  # a called agent has its own holds
                hold = parse_details(cause.details, is_over=error.retry_state is RetryState.TIMEOUT)
            return Failure.model_validate({"kind": "error", **about, **hold})
        case HandlerError():
            return Failure(kind="error", error_type=cause.type.name, message=cause.message[:MAX_FAILURE_CHARS])
        case _:
            return Failure(kind="error", error_type=type(cause).__name__ if cause else "Error")


async def unless_closed(delivery: Awaitable[None], event: str) -> None:
    """Await a signal or a cancellation request. If its target has already closed, only log `event`."""
    try:
        await delivery
    except ApplicationError:
        workflow.logger.info(event)


def now() -> float:
    """Return the workflow's current time, in seconds since 1970."""
    return workflow.time()
