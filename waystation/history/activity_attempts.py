"""Activity attempts: those recorded in histories and those pending on the server."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import ids
from waystation.core.contract import WORKFLOW
from waystation.core.log import Failure, responses
from waystation.core.projection import CHILD
from waystation.history.history_events import (
    EventType,
    decode_events,
    decode_message,
    failure_of,
    get_attributes,
    get_time_s,
    is_local_activity,
    loss_of,
    payloads_of,
    read_json_content,
    read_local_activity,
    scheduled_by,
)
from waystation.history.history_fetch import describe_workflow

LAST_EVENTS = 10
"""Number of events of a workflow that are read to learn why its last workflow task failed."""


@dataclass(slots=True)
class ActivityAttempts:
    """The recorded attempts of one activity, or one run of a called agent. Times are in seconds since 1970.

    Attempts in flight are missing, because a history records an attempt only after it has ended.
    """

    activity: str
    """The activity ID, without the suffix of `ids.target`, or, for a called agent, the function call ID."""
    type: str
    """The activity type or, for a called agent, the workflow type."""
    event_id: int
    """ID of the history event that scheduled the activity or initiated the called agent, or of the marker that records
    a local activity. It is unique within a run."""
    scheduled: float
    """For a local activity, the start of its workflow task."""
    started: float | None = None
    """Start time of the last recorded attempt."""
    ended: float | None = None
    count: int = 0
    failure: Failure | None = None
    """The failure of the last attempt that failed, or None if no attempt failed."""
    failure_before: Failure | None = None
    """The failure of the attempt before the last one, or None if there was no such attempt."""
    lost: bool = False
    """Whether the activity failed or timed out for good. Always false for a called agent."""

    @property
    def lasted_s(self) -> float | None:
        """The time from scheduling to the end, in seconds, or None if there is no end yet."""
        return None if self.ended is None else max(self.ended - self.scheduled, 0.0)

    def apply(self, event: HistoryEvent) -> None:
        """Update the attempts from a later event of the same activity or called agent."""
        attributes = get_attributes(event)
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                self.started, self.count = get_time_s(event), max(attributes.attempt, 1)
                if attributes.HasField("last_failure"):
                    self.failure = self.failure_before = _last_failure(attributes.last_failure)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
                self.started, self.count = get_time_s(event), 1
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED | EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                self.ended, self.failure, self.lost = get_time_s(event), loss_of(event), True
            case kind if kind != EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
                self.ended = get_time_s(event)


def collect_attempts(histories: Iterable[WorkflowHistory]) -> list[ActivityAttempts]:
    """Return the attempts of every activity and called agent in these runs, in the order they were scheduled."""
    result: list[ActivityAttempts] = []
    for history in histories:
        scheduled: dict[int, ActivityAttempts] = {}
        task_started = 0.0
        for event in history.events:
            id, attributes = event.event_id, get_attributes(event)
            match event.event_type:
                case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                    kind = attributes.activity_type.name
                    activity = ids.parse_target(attributes.activity_id) or attributes.activity_id
                    scheduled[id] = ActivityAttempts(activity, kind, id, get_time_s(event))
                case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                    function_call_id = attributes.workflow_id.rpartition("/")[2]
                    scheduled[id] = ActivityAttempts(
                        function_call_id, attributes.workflow_type.name, id, get_time_s(event)
                    )
                case EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                    task_started = get_time_s(event)
                case EventType.EVENT_TYPE_MARKER_RECORDED if is_local_activity(event):
                    ran = read_local_activity(event)
                    times = task_started, task_started, ran.ended
                    scheduled[id] = ActivityAttempts(ran.id, ran.type, id, *times, count=1, failure=ran.failure)
                case _ if attempts := scheduled.get(scheduled_by(attributes)):
                    attempts.apply(event)
        result += scheduled.values()
    return result


@dataclass(frozen=True, slots=True)
class ScheduledActivity:
    """An activity that a run scheduled. It may have run even if it has no result."""

    run_id: str
    id: str
    scheduled: datetime
    input: bytes
    """Its argument as JSON, or empty bytes if the argument cannot be read."""
    result: bytes
    """Its result as JSON, or empty bytes if there is none or it cannot be read."""


async def fetch_activities(client: Client, workflow_id: str, run_id: str, kind: str) -> list[ScheduledActivity]:
    """Return the activities of type `kind` that a run scheduled, in the order in which it scheduled them.

    Raises:
        RPCError: The run does not exist, or the server cannot be reached.
    """
    events = (await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()).events
    completed = {event.activity_task_completed_event_attributes.scheduled_event_id: event for event in events}
    return [
        ScheduledActivity(
            run_id,
            event.activity_task_scheduled_event_attributes.activity_id,
            event.event_time.ToDatetime(UTC),
            await _read_content(event, client.data_converter),
            await _read_content(completed.get(event.event_id), client.data_converter),
        )
        for event in events
        if event.activity_task_scheduled_event_attributes.activity_type.name == kind
    ]


async def _read_content(event: HistoryEvent | None, converter: DataConverter) -> bytes:
    with suppress(Exception):  # anyone can write foreign payloads, and codecs may raise anything
        for decoded in await decode_events([event] if event else [], converter):
            return b"".join(read_json_content(payloads.payloads) for payloads in payloads_of(decoded))
    return b""


def find_failed_workflow_tasks(histories: Iterable[WorkflowHistory]) -> list[tuple[int, str]]:
    """Return the event IDs and error messages of failed workflow tasks.

    A workflow task fails, for example, after an incompatible deployment.
    """
    return [
        (event.event_id, event.workflow_task_failed_event_attributes.failure.message)
        for history in histories
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]


@dataclass(frozen=True, slots=True)
class PendingRetry:
    """A pending activity that has failed before or that no worker has picked up yet, or a workflow of a tool whose
    workflow tasks fail.
    """

    workflow_id: str
    activity: str
    """The activity ID. Empty for a workflow."""
    type: str
    failed: int
    """The number of attempts that have failed so far."""
    most: int
    """The maximum number of attempts, or 0 if there is no limit."""
    failure: Failure | None
    """The failure of the last attempt, or None if no attempt has failed."""
    task_queue: str
    """The task queue that holds the activity."""
    next_at: float | None
    """When the next attempt is due, in seconds since 1970, or None if a worker has already picked it up."""
    is_due: bool
    """Whether that time has come, so that the activity is in its task queue or with a worker."""

    @property
    def is_undecrypted(self) -> bool:
        """Whether it fails because the worker cannot decrypt its input."""
        return self.failure is not None and responses.UNDECRYPTED in self.failure.message


async def fetch_retries(client: Client, workflow_id: str) -> tuple[list[PendingRetry], bool]:
    """Return the pending retries of a workflow and its called agents, and whether any of these has pending work.

    A tool's workflow counts as a retry while its workflow tasks fail. Pending work is an activity, a called agent or a
    tool's workflow that has not ended. Workflows that are not running are skipped.

    Raises:
        RPCError: The server did not respond.
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
        for child in description.pending_children:
            if child.workflow_type_name == WORKFLOW:
                workflow_ids.append(child.workflow_id)
            elif retry := await _fetch_workflow_retry(client, child.workflow_id):
                retries.append(retry)
        for activity in description.pending_activities:
            await decode_message(activity.last_failure, client.data_converter)
        # Skip the activity that polls a called agent. It fails until that agent ends, so its retries are normal.
        retries += [
            _retry(id, activity)
            for activity in description.pending_activities
            if activity.activity_type.name != CHILD.name and (activity.attempt > 1 or _is_queued(activity))
        ]
    return retries, has_work


async def _fetch_workflow_retry(client: Client, workflow_id: str) -> PendingRetry | None:
    described = await describe_workflow(client, workflow_id)
    if described is None or described.raw_description.pending_workflow_task.attempt < 2:
        return None
    recorded = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id),
            maximum_page_size=LAST_EVENTS,
        )
    )
    failures = (event.workflow_task_failed_event_attributes.failure for event in recorded.history.events)
    failure = next((each for each in failures if each.message), FailureProto())
    await decode_message(failure, client.data_converter)
    return PendingRetry(
        workflow_id,
        "",
        described.workflow_type,
        failed=described.raw_description.pending_workflow_task.attempt - 1,
        most=0,
        failure=_last_failure(failure) if failure.message else None,
        task_queue=described.task_queue,
        next_at=None,
        is_due=True,
    )


def _last_failure(failure: FailureProto) -> Failure:
    """Convert the failure of an attempt or, if its worker could not decrypt the input, the cause that says so."""
    cause = failure
    while responses.UNDECRYPTED not in cause.message and cause.HasField("cause"):
        cause = cause.cause
    return failure_of(cause if responses.UNDECRYPTED in cause.message else failure)


def _is_queued(activity: PendingActivityInfo) -> bool:
    return activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


def _retry(workflow_id: str, activity: PendingActivityInfo) -> PendingRetry:
    # The server reports the due time of the next attempt until that time comes, then the time the attempt was queued.
    is_scheduled = activity.HasField("next_attempt_schedule_time")
    due = activity.next_attempt_schedule_time if is_scheduled else activity.scheduled_time
    return PendingRetry(
        workflow_id,
        activity.activity_id,
        activity.activity_type.name,
        failed=activity.attempt - 1,
        most=activity.maximum_attempts,
        failure=_last_failure(activity.last_failure) if activity.HasField("last_failure") else None,
        task_queue=activity.activity_options.task_queue.name,
        next_at=due.ToNanoseconds() / 1e9 if _is_queued(activity) else None,
        is_due=not is_scheduled,
    )
