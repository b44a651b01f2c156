"""Attempts at activities: recorded in histories, and pending on the server."""

from collections.abc import Iterable
from dataclasses import dataclass

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHistory

from waystation.core import CHILD, WORKFLOW, Failure
from waystation.history.history_events import EventType, failure_of, get_attributes, get_time_s, loss_of, scheduled_by
from waystation.history.history_fetch import describe_workflow


@dataclass(slots=True)
class ActivityAttempts:
    """The recorded attempts at one activity, or one run of a called agent. Times are in seconds since 1970.

    A history does not record an attempt that is in flight.
    """

    activity: str
    """The activity's id; of a called agent, the id of the call."""
    type: str
    """The activity type; of a called agent, the workflow type."""
    event_id: int
    """Id of the event that scheduled it, in its run."""
    scheduled: float
    started: float | None = None
    """When the last recorded attempt began."""
    ended: float | None = None
    count: int = 0
    failure: Failure | None = None
    """Of the last attempt that failed."""
    failure_before: Failure | None = None
    """Of the attempt before the last one."""
    lost: bool = False
    """Whether every attempt failed."""

    @property
    def lasted_s(self) -> float | None:
        """Seconds from when it was scheduled until it ended; None while it has not."""
        return None if self.ended is None else max(self.ended - self.scheduled, 0.0)

    def apply(self, event: HistoryEvent) -> None:
        """Apply a later event of the same activity or called agent."""
        attributes = get_attributes(event)
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                self.started, self.count = get_time_s(event), max(attributes.attempt, 1)
                if attributes.HasField("last_failure"):
                    self.failure = self.failure_before = failure_of(attributes.last_failure)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
                self.started, self.count = get_time_s(event), 1
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED | EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                self.ended, self.failure, self.lost = get_time_s(event), loss_of(event), True
            case kind if kind != EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
                self.ended = get_time_s(event)


def collect_attempts(histories: Iterable[WorkflowHistory]) -> list[ActivityAttempts]:
    """Return the attempts at each activity and called agent of some runs, in the order they were scheduled."""
    result: list[ActivityAttempts] = []
    for history in histories:
        scheduled: dict[int, ActivityAttempts] = {}
        for event in history.events:
            id, attributes = event.event_id, get_attributes(event)
            match event.event_type:
                case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                    kind = attributes.activity_type.name
                    scheduled[id] = ActivityAttempts(attributes.activity_id, kind, id, get_time_s(event))
                case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                    call_id = attributes.workflow_id.rpartition("/")[2]
                    scheduled[id] = ActivityAttempts(call_id, attributes.workflow_type.name, id, get_time_s(event))
                case _ if attempts := scheduled.get(scheduled_by(attributes)):
                    attempts.apply(event)
        result += scheduled.values()
    return result


def find_failed_workflow_tasks(histories: Iterable[WorkflowHistory]) -> list[tuple[int, str]]:
    """Return event ids and error messages of failed workflow tasks, for example after an incompatible deployment."""
    return [
        (event.event_id, event.workflow_task_failed_event_attributes.failure.message)
        for history in histories
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]


@dataclass(frozen=True, slots=True)
class PendingRetry:
    """An activity that failed and will be retried, or that no worker has picked up yet."""

    workflow_id: str
    activity: str
    """The activity id."""
    type: str
    failed: int
    """Number of failed attempts; 0 before the first one."""
    most: int
    """The maximum number of attempts; 0 for no limit."""
    failure: Failure | None
    """Failure of the last attempt."""
    task_queue: str
    """The task queue that holds the activity."""
    next_at: float | None
    """When the next attempt is due, in seconds since 1970; None once a worker has picked it up."""


async def fetch_retries(client: Client, workflow_id: str) -> tuple[list[PendingRetry], bool]:
    """Return the pending retries of a workflow and of the agents it called, and whether it has any pending work.

    Raises:
        RPCError: The server does not answer.
    """
    retries = list[PendingRetry]()
    has_work = False
    workflow_ids = [workflow_id]
    while workflow_ids:
        id = workflow_ids.pop(0)
        described = await describe_workflow(client, id)
        if described is None or described.status is not WorkflowExecutionStatus.RUNNING:
            continue
        description = described.raw_description
        has_work = has_work or bool(description.pending_activities or description.pending_children)
        workflow_ids += [
            child.workflow_id for child in description.pending_children if child.workflow_type_name == WORKFLOW
        ]
        # The activity that waits for a called agent fails until that agent ends. This is not a retry.
        retries += [
            _retry(id, activity)
            for activity in description.pending_activities
            if activity.activity_type.name != CHILD.name and (activity.attempt > 1 or _is_queued(activity))
        ]
    return retries, has_work


def _is_queued(activity: PendingActivityInfo) -> bool:
    return activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


def _retry(workflow_id: str, activity: PendingActivityInfo) -> PendingRetry:
    # Before the due time the server reports that time, afterwards the time at which the attempt was queued.
    is_scheduled = activity.HasField("next_attempt_schedule_time")
    due = activity.next_attempt_schedule_time if is_scheduled else activity.scheduled_time
    return PendingRetry(
        workflow_id,
        activity.activity_id,
        activity.activity_type.name,
        failed=activity.attempt - 1,
        most=activity.maximum_attempts,
        failure=failure_of(activity.last_failure) if activity.HasField("last_failure") else None,
        task_queue=activity.activity_options.task_queue.name,
        next_at=due.ToNanoseconds() / 1e9 if _is_queued(activity) else None,
    )
