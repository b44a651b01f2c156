"""How often activities were attempted, and why once was not enough: as far as histories say."""

from collections.abc import Iterable
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from waystation.core.entry import Failure
from waystation.history.failures import failure_of


@dataclass(slots=True)
class Attempts:
    """The attempts at one activity. Of one that was begun but is not over, a history says nothing."""

    activity: str
    """Its id."""
    type: str
    event_id: int
    """Of the event that scheduled it, in its run."""
    count: int = 0
    failure: Failure | None = None
    """Of the last attempt that failed."""
    lost: bool = False
    """Whether all of them failed."""


def attempts_of(histories: Iterable[WorkflowHistory]) -> list[Attempts]:
    """Return the attempts at each activity of some runs, in the order in which they were scheduled."""
    found: list[Attempts] = []
    for history in histories:
        scheduled: dict[int, Attempts] = {}
        for event in history.events:
            match event.event_type:
                case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                    given = event.activity_task_scheduled_event_attributes
                    each = Attempts(given.activity_id, given.activity_type.name, event.event_id)
                    scheduled[event.event_id] = each
                    found.append(each)
                case EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                    started = event.activity_task_started_event_attributes
                    each = scheduled[started.scheduled_event_id]
                    each.count = started.attempt
                    if started.HasField("last_failure"):
                        each.failure = failure_of(started.last_failure)
                case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                    failed = event.activity_task_failed_event_attributes
                    each = scheduled[failed.scheduled_event_id]
                    each.failure, each.lost = failure_of(failed.failure), True
                case EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                    timed_out = event.activity_task_timed_out_event_attributes
                    each = scheduled[timed_out.scheduled_event_id]
                    each.failure, each.lost = failure_of(timed_out.failure), True
                case _:
                    pass
    return found


def tasks_failed(histories: Iterable[WorkflowHistory]) -> list[tuple[int, str]]:
    """Return the workflow tasks that failed, such as of a worker with other code: event ids and reasons."""
    failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    return [
        (event.event_id, event.workflow_task_failed_event_attributes.failure.message)
        for history in histories
        for event in history.events
        if event.event_type == failed
    ]
