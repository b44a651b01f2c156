"""Read Temporal history events into the core's facts."""

from collections.abc import Iterable, Iterator

from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.update.v1 import Request
from temporalio.client import WorkflowHistory

from waystation.core import facts, ids
from waystation.core.entry import EndStatus, Failure
from waystation.core.errors import ForeignHistory, WaystationError
from waystation.core.facts import Fact
from waystation.core.log import Log
from waystation.core.projection import Projection
from waystation.core.wire import ANSWER_UPDATE, CHILD_ACTIVITY, MODEL_ACTIVITY, WORKFLOW
from waystation.history.history_events import (
    COMMANDS,
    OF_ACTIVITIES,
    SILENT,
    TASK_UNDER_WAY,
    EventType,
    agent_failure_of,
    check_content,
    failure_of,
    json_data,
    lacking_in,
    patch_of,
    read_content,
    seconds_of,
)

_ENDINGS: dict[int, EndStatus] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continued",
}


class HistoryReader:
    """Turns the events of one run into facts, in order. Remembers what ids the server's numbers stand for."""

    def __init__(self) -> None:
        self.last_event_id = 0
        self._scheduled: dict[int, str] = {}
        self._followed: set[int] = set()
        self._admitted: dict[int, Request] = {}
        self._task = (0, 0.0)
        """Event id and time of the latest start of a workflow task."""
        self._completed = False
        """Whether that task is completed, and nothing was said about it yet."""
        self._commands = False
        """Whether there was a command since the last task of which something was said."""
        self._empty: list[tuple[int, float]] = []

    def read(self, events: Iterable[HistoryEvent]) -> Iterator[Fact]:
        """Yield the facts in `events`; events that were read before are passed over."""
        for event in events:
            if event.event_id > self.last_event_id:
                if event.event_type not in TASK_UNDER_WAY:
                    self.last_event_id = event.event_id
                if self._completed:
                    yield from self._conclude(event)
                if event.event_type not in SILENT:
                    yield from self._read(event)
        yield from self._conclude(None)

    def _conclude(self, following: HistoryEvent | None) -> Iterator[Fact]:
        """Say that a workflow task was completed, now that the event after it is known.

        A replay takes an empty task that another follows at once together with that one, at its time; see "workflow
        task chunking" in the SDK's core. Updates that were refused leave such tasks.
        """
        if not self._completed:
            return
        self._completed = False
        kind = following.event_type if following else None
        if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED and not self._commands:
            self._empty.append(self._task)
            return
        if following and kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            accepted = following.workflow_execution_update_accepted_event_attributes
            asked = accepted.accepted_request_sequencing_event_id
            if before := [time for event_id, time in self._empty if event_id < asked]:
                yield facts.TaskCompleted(before[-1])
        yield facts.TaskCompleted(self._task[1])
        self._empty.clear()
        self._commands = False

    def _read(self, event: HistoryEvent) -> Iterator[Fact]:
        self._commands = self._commands or event.event_type in COMMANDS
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                started = event.workflow_execution_started_event_attributes
                if started.workflow_type.name != WORKFLOW:
                    raise ForeignHistory(
                        f"This is a history of {started.workflow_type.name!r}; Waystation reads those of {WORKFLOW!r}."
                    )
                check_content(started.input.payloads)
                yield facts.Started(
                    json_data(started.input.payloads),
                    continues=bool(started.continued_execution_run_id),
                    child=bool(started.parent_workflow_execution.workflow_id),
                )
            case EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._task = (event.event_id, seconds_of(event))
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                self._completed = True
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signal = event.workflow_execution_signaled_event_attributes
                held = signal.input.payloads
                yield facts.Signalled(signal.signal_name, json_data(held), lacking_in(held))
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                if ref := ids.signal_not_found(patch_of(event)):
                    yield facts.NotFound(ref)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED:
                # Only those that a reset sends again are recorded so; that they are accepted then repeats nothing.
                self._admitted[event.event_id] = event.workflow_execution_update_admitted_event_attributes.request
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                took = event.workflow_execution_update_accepted_event_attributes
                update = self._admitted.pop(took.accepted_request_sequencing_event_id, took.accepted_request).input
                if update.name == ANSWER_UPDATE:
                    yield facts.UpdateAccepted([read_content(update.args.payloads)])
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
                yield facts.CancelAsked()
            case EventType.EVENT_TYPE_TIMER_FIRED:
                yield facts.TimerFired()
            case _:
                # What archives the log is no part of it, nor is what nobody waits for any more; what was taken over is
                # read where the next run begins with it.
                yield from (fact for fact in self._read_activity(event) if not _is_aside(fact))
                if event.event_type not in OF_ACTIVITIES:
                    yield from self._read_child(event)
        if ending := _ENDINGS.get(event.event_type):
            yield facts.Closed(ending, seconds_of(event))

    def _read_activity(self, event: HistoryEvent) -> Iterator[Fact]:
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                scheduled = event.activity_task_scheduled_event_attributes
                self._scheduled[event.event_id] = scheduled.activity_id
                if scheduled.activity_type.name == CHILD_ACTIVITY:
                    self._scheduled[event.event_id] = ids.called_agent(scheduled.activity_id)
                    self._followed.add(event.event_id)
                is_model = scheduled.activity_type.name == MODEL_ACTIVITY
                yield facts.Scheduled(scheduled.activity_id, read_content(scheduled.input.payloads), is_model)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
                scheduled_id = event.activity_task_cancel_requested_event_attributes.scheduled_event_id
                # Whatever it still says, the workflow does not hear; how the child ended is told by a further look.
                if scheduled_id in self._followed:
                    self._scheduled[scheduled_id] = ids.archive(0)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                ref = self._scheduled[completed.scheduled_event_id]
                followed = completed.scheduled_event_id in self._followed
                yield facts.Returned(ref, read_content(completed.result.payloads), followed=followed)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                failed = event.activity_task_failed_event_attributes
                yield facts.Lost(self._scheduled[failed.scheduled_event_id], failure_of(failed.failure))
            case EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                timed_out = event.activity_task_timed_out_event_attributes
                yield facts.Lost(self._scheduled[timed_out.scheduled_event_id], failure_of(timed_out.failure))
            case EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
                cancelled = event.activity_task_canceled_event_attributes
                yield facts.Lost(self._scheduled[cancelled.scheduled_event_id], Failure(kind="cancelled"))

    def _read_child(self, event: HistoryEvent) -> Iterator[Fact]:
        match event.event_type:
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                initiated = event.start_child_workflow_execution_initiated_event_attributes
                self._scheduled[event.event_id] = initiated.workflow_id.rsplit("/", 1)[-1]
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED:
                refused = event.start_child_workflow_execution_failed_event_attributes
                failure = Failure(kind="error", error_type="WorkflowAlreadyStartedError")
                yield facts.Lost(self._scheduled[refused.initiated_event_id], failure)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                completed = event.child_workflow_execution_completed_event_attributes
                ref = self._scheduled[completed.initiated_event_id]
                yield facts.Returned(ref, read_content(completed.result.payloads), child=True)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
                failed = event.child_workflow_execution_failed_event_attributes
                yield facts.Lost(self._scheduled[failed.initiated_event_id], agent_failure_of(failed.failure))
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED:
                cancelled = event.child_workflow_execution_canceled_event_attributes
                yield facts.Lost(self._scheduled[cancelled.initiated_event_id], Failure(kind="cancelled"))
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT:
                timed_out = event.child_workflow_execution_timed_out_event_attributes
                yield facts.Lost(self._scheduled[timed_out.initiated_event_id], Failure(kind="start_to_close"))
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED:
                terminated = event.child_workflow_execution_terminated_event_attributes
                failure = Failure(kind="error", error_type="TerminatedError")
                yield facts.Lost(self._scheduled[terminated.initiated_event_id], failure)


def log_of(histories: Iterable[WorkflowHistory], log: Log | None = None) -> Log:
    """Return the log that the runs of an invocation make, oldest first; `log` is that of the runs before.

    Raises:
        ForeignHistory: It is not an invocation of Waystation, or a history is damaged or missing.
    """
    for history in histories:
        projection = Projection(history.workflow_id, log)
        try:
            projection.feed(HistoryReader().read(history.events))
            projection.flush()
        except WaystationError:
            raise
        except Exception as error:  # whatever is met in what no workflow recorded so
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ForeignHistory(
                f"The history of {history.workflow_id!r} contradicts itself ({reason}), as one that was edited by hand "
                "may. Save it again."
            ) from error
        log = projection.log
    assert log is not None
    return log


def _is_aside(fact: Fact) -> bool:
    taken_over = isinstance(fact, facts.Returned) and fact.ref == ids.FORK
    return taken_over or (isinstance(fact, facts.Returned | facts.Lost) and ids.is_archive(fact.ref))
