"""Read Temporal's failures into the core's."""

from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure as FailureProto

from waystation.core.entry import Failure, FailureKind

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
