"""What enters and leaves a workflow, as bytes.

Payloads cross undecoded. A typed parameter that does not decode sticks the workflow or drops the message without a
trace; here the core parses, and whatever it cannot parse becomes a recorded entry or a typed failure.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TimeoutError,
    TimeoutType,
)

from waystation.core.continued import Carried
from waystation.core.entry import Body, Failure, FailureKind
from waystation.core.event import Event
from waystation.core.payload import JsonObject, encode

_JSON = {"encoding": b"json/plain"}
_READABLE = (b"json/plain", b"json/protobuf")
_UNREADABLE = b"waystation/unreadable"
"""What `waystation.storage.driver` makes of references that lead nowhere."""

MAX_FAILURE_CHARS = 4_096
MAX_QUERY_BYTES = 1_500_000

HAND_OVER = "waystation.hand_over"
"""Name of the function, if any, by which the process keeps for its activities what a workflow was given."""

TIMEOUT_KINDS: dict[TimeoutType, FailureKind] = {
    TimeoutType.START_TO_CLOSE: "start_to_close",
    TimeoutType.SCHEDULE_TO_START: "schedule_to_start",
    TimeoutType.SCHEDULE_TO_CLOSE: "schedule_to_close",
    TimeoutType.HEARTBEAT: "heartbeat",
}


class ResultElsewhere(Exception):
    """Fails the workflow task, not the workflow: results come from our own workers, so it is a store that is wrong.

    The server repeats the task until a worker with the right store takes it.
    """


def data_of(payload: Payload) -> bytes:
    """Return the JSON in a payload; an encoding that is not JSON reads as broken JSON."""
    return payload.data if payload.metadata.get("encoding") in _READABLE else b""


def result_of(payload: Payload) -> bytes:
    """Return the JSON of a result.

    Raises:
        ResultElsewhere: It was offloaded, and this worker's store does not hold it.
    """
    if payload.metadata.get("encoding") == _UNREADABLE:
        raise ResultElsewhere("A result is not in this worker's store; give it the one that the others use (--store).")
    return data_of(payload)


def all_data(values: Sequence[RawValue]) -> list[bytes]:
    """Return the JSON in each of several arguments."""
    return [data_of(value.payload) for value in values]


def raw(data: bytes) -> RawValue:
    """Return JSON as a payload that any Temporal client reads."""
    return RawValue(Payload(metadata=_JSON, data=data))


def paged(events: Sequence[Event], start: int) -> list[JsonObject]:
    """Return the events from index `start` on, as many as fit into one answer."""
    page: list[JsonObject] = []
    size = 0
    for event in events[max(start, 0) :]:
        page.append(event.to_json())
        size += len(encode(page[-1]))
        if size > MAX_QUERY_BYTES:
            break
    return page


def hand_over(ref: str, body: Body | Carried, size: int) -> None:
    """Let activities of this process know an entry that came from outside, so that they need not read it back.

    Nothing comes back from there, so no workflow depends on it. Only for entries that are the same in every attempt
    at the workflow task: an update whose workflow task is lost may come again as another one's second.
    """
    keep = workflow.extern_functions().get(HAND_OVER)
    if keep and not workflow.unsafe.is_replaying():
        info = workflow.info()
        keep(info.workflow_id, info.run_id, ref, body, size)


def failure_of(error: ActivityError | ChildWorkflowError) -> Failure:
    """Return why an activity or a child gave no result."""
    cause = error.cause
    match cause:
        case TimeoutError():
            return Failure(kind=TIMEOUT_KINDS.get(cause.type or TimeoutType.START_TO_CLOSE, "start_to_close"))
        case CancelledError():
            return Failure(kind="cancelled")
        case ApplicationError():
            return Failure(kind="error", error_type=cause.type or "Error", message=cause.message[:MAX_FAILURE_CHARS])
        case _:
            return Failure(kind="error", error_type=type(cause).__name__ if cause else "Error")


def now() -> float:
    """Return the workflow's clock, in seconds since 1970."""
    return workflow.time()
