"""What of an invocation has yet to be tried, for the first time or again: the server tells of it only while it goes on,
not in history."""

from dataclasses import dataclass

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus

from waystation.core.entry import Failure
from waystation.core.wire import CHILD_ACTIVITY, WORKFLOW
from waystation.history.failures import failure_of
from waystation.history.session_runs import description


@dataclass(frozen=True, slots=True)
class Retry:
    """One activity that failed and has further attempts, or that no worker has taken so far."""

    workflow_id: str
    activity: str
    """Its id."""
    type: str
    failed: int
    """How many attempts failed; 0 where it waits for its first one."""
    most: int
    """How many there are at most; 0 for no bound."""
    failure: Failure | None
    """Of the last attempt."""
    task_queue: str
    """Whose workers may take it."""
    next_at: float | None
    """When the next attempt is, or was, due, in seconds since 1970; None once a worker has taken it."""


async def retries(client: Client, workflow_id: str) -> tuple[list[Retry], bool]:
    """Return what has yet to be tried, in a workflow and those that it started; and whether there is any work at all.

    Raises:
        RPCError: The server does not say.
    """
    found = list[Retry]()
    at_work = False
    left = [workflow_id]
    while left:
        id = left.pop(0)
        described = await description(client, id)
        if described is None or described.status is not WorkflowExecutionStatus.RUNNING:
            continue
        told = described.raw_description
        at_work = at_work or bool(told.pending_activities or told.pending_children)
        left += [each.workflow_id for each in told.pending_children if each.workflow_type_name == WORKFLOW]
        # A look at a called agent fails for as long as that goes on.
        looked = [each for each in told.pending_activities if each.activity_type.name != CHILD_ACTIVITY]
        found += [_retry(id, each) for each in looked if each.attempt > 1 or _waits(each)]
    return found, at_work


def _waits(activity: PendingActivityInfo) -> bool:
    return activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


def _retry(workflow_id: str, activity: PendingActivityInfo) -> Retry:
    # The server says when the next attempt comes until it has come, and then since when it waits for a worker.
    later = activity.HasField("next_attempt_schedule_time")
    due = activity.next_attempt_schedule_time if later else activity.scheduled_time
    return Retry(
        workflow_id,
        activity.activity_id,
        activity.activity_type.name,
        failed=activity.attempt - 1,
        most=activity.maximum_attempts,
        failure=failure_of(activity.last_failure) if activity.HasField("last_failure") else None,
        task_queue=activity.activity_options.task_queue.name,
        next_at=due.ToNanoseconds() / 1e9 if _waits(activity) else None,
    )
