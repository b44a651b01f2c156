"""Read Temporal history events into the core's facts."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.update.v1 import Request
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import facts, ids, results
from waystation.core.continued import Carried, ChildOutcome
from waystation.core.entry import EndStatus, Failure
from waystation.core.errors import ForeignHistory, StoreFailed, WaystationError
from waystation.core.facts import Fact
from waystation.core.log import Log
from waystation.core.payload import decode
from waystation.core.projection import Projection
from waystation.core.wire import ANSWER_UPDATE, CHILD_ACTIVITY, MODEL_ACTIVITY, WORKFLOW, InvocationInput
from waystation.history.event_types import COMMANDS, OF_ACTIVITIES, SILENT, EventType
from waystation.history.failures import failure_of
from waystation.storage.blobs import STORE_VARIABLE
from waystation.storage.driver import UNREADABLE, is_reference, retrieved

_ENDINGS: dict[int, EndStatus] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continued",
}
TASK_UNDER_WAY = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED})
"""While nothing follows them they may be those of a further attempt, which is not in the history yet: the server shows
them all the same, and gives their ids to what happens meanwhile."""


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
                _check_content(started.input.payloads)
                yield facts.Started(
                    _data(started.input.payloads),
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
                yield facts.Signalled(signal.signal_name, _data(held), lacking_in(held))
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
                    yield facts.UpdateAccepted([content(update.args.payloads)])
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
                yield facts.Scheduled(scheduled.activity_id, content(scheduled.input.payloads), is_model)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
                scheduled_id = event.activity_task_cancel_requested_event_attributes.scheduled_event_id
                # Whatever it still says, the workflow does not hear; how the child ended is told by a further look.
                if scheduled_id in self._followed:
                    self._scheduled[scheduled_id] = ids.archive(0)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                ref = self._scheduled[completed.scheduled_event_id]
                followed = completed.scheduled_event_id in self._followed
                yield facts.Returned(ref, content(completed.result.payloads), followed=followed)
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
                yield facts.Returned(ref, content(completed.result.payloads), child=True)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
                failed = event.child_workflow_execution_failed_event_attributes
                yield facts.Lost(self._scheduled[failed.initiated_event_id], _agent_failure(failed.failure))
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


async def decoded(events: Iterable[HistoryEvent], converter: DataConverter) -> Sequence[HistoryEvent]:
    """Return events with their payloads as they were before the converter's codec and storage, if it has them.

    Raises:
        StoreFailed: Offloaded payloads cannot be looked for.
    """
    codec = converter.payload_codec
    result = []
    for event in events:
        if codec is None and not any(is_reference(p) for held in _payloads(event) for p in held.payloads):
            result.append(event)
            continue
        plain = HistoryEvent()
        plain.CopyFrom(event)
        for payloads in _payloads(plain):
            opened = await retrieved(payloads.payloads, converter)
            if codec is not None:
                opened = await codec.decode(opened)
            del payloads.payloads[:]
            payloads.payloads.extend(opened)
        result.append(plain)
    return result


def _payloads(event: HistoryEvent) -> Iterator[Payloads]:
    """Yield what an event holds of an invocation's content."""
    match event.WhichOneof("attributes"):
        case (
            "workflow_execution_started_event_attributes"
            | "workflow_execution_signaled_event_attributes"
            | "activity_task_scheduled_event_attributes"
            | "start_child_workflow_execution_initiated_event_attributes"
            | "signal_external_workflow_execution_initiated_event_attributes"
            | "workflow_execution_continued_as_new_event_attributes"
        ) as kind:
            yield getattr(event, kind).input
        case (
            "activity_task_completed_event_attributes"
            | "workflow_execution_completed_event_attributes"
            | "child_workflow_execution_completed_event_attributes"
        ) as kind:
            yield getattr(event, kind).result
        case "workflow_execution_update_accepted_event_attributes" as kind:
            yield getattr(event, kind).accepted_request.input.args
        case "workflow_execution_update_admitted_event_attributes" as kind:
            yield getattr(event, kind).request.input.args
        case "workflow_execution_failed_event_attributes" | "child_workflow_execution_failed_event_attributes" as kind:
            failure = getattr(event, kind).failure
            if failure.HasField("application_failure_info"):
                yield failure.application_failure_info.details


def outcome_of(last: HistoryEvent) -> ChildOutcome | None:
    """Return what became of an invocation, given the last event of a run; None when it is still at work."""
    match last.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            data = content(last.workflow_execution_completed_event_attributes.result.payloads)
            try:
                return ChildOutcome(result=decode(data))
            except (ValidationError, ValueError):
                return ChildOutcome()
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            return ChildOutcome(failure=_agent_failure(last.workflow_execution_failed_event_attributes.failure))
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
            return ChildOutcome(failure=Failure(kind="cancelled"))
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
            return ChildOutcome(failure=Failure(kind="start_to_close"))
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            return ChildOutcome(failure=Failure(kind="error", error_type="TerminatedError"))
        case _:
            return None


def carried_by(first: HistoryEvent) -> tuple[InvocationInput, Carried] | None:
    """Return a run's input and what it has from the run that it continues, given its first event.

    Raises:
        ForeignHistory: It cannot be read.
    """
    started = first.workflow_execution_started_event_attributes
    _check_content(started.input.payloads)
    return facts.Started(_data(started.input.payloads), continues=bool(continues(first))).carried()


def type_of(history: WorkflowHistory) -> str:
    """Return the type of a workflow, given a history that begins at its beginning."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


def seconds_of(event: HistoryEvent) -> float:
    """Return when an event was recorded, in seconds since 1970."""
    return event.event_time.ToNanoseconds() / 1e9


def run_id_of(events: Iterable[HistoryEvent]) -> str:
    """Return the id of a run, given its events from the first one on."""
    found = ""
    for event in events:
        started = event.workflow_execution_started_event_attributes.original_execution_run_id
        # The history of a run that was reset begins with that of the run before.
        found = event.workflow_task_failed_event_attributes.new_run_id or started or found
    return found


def run_ids_of(events: Iterable[HistoryEvent]) -> list[str]:
    """Return the ids that a run had, given its events: more than one if it was reset, for each stretch its own."""
    each = dict.fromkeys(run_id_of([event]) for event in events)
    return [run_id for run_id in each if run_id]


def continues(first: HistoryEvent) -> str | None:
    """Return the id of the run that one continues, given its first event."""
    return first.workflow_execution_started_event_attributes.continued_execution_run_id or None


def continued_as(last: HistoryEvent) -> str | None:
    """Return the id of the run that continues one, given its last event."""
    return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None


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


def arguments(payloads: Payloads) -> list[bytes]:
    """Return the JSON of each payload."""
    return _data(payloads.payloads)


def _data(payloads: Iterable[Payload]) -> list[bytes]:
    # As in workflows/ports.py: what is not JSON reads as broken JSON, on both sides alike.
    return [p.data if p.metadata.get("encoding") in (b"json/plain", b"json/protobuf") else b"" for p in payloads]


def content(payloads: Sequence[Payload]) -> bytes:
    """Return the JSON that some worker had.

    Raises:
        StoreFailed: It is kept beside the history, and not where this process looks.
    """
    _check_content(payloads)
    return b"".join(_data(payloads))


def lacking_in(payloads: Iterable[Payload]) -> str | None:
    """Return why some of it is not there, when it is kept beside the history and not where this process looks."""
    for payload in payloads:
        if payload.metadata.get("encoding") == UNREADABLE["encoding"] or is_reference(payload):
            problem = payload.data.decode(errors="replace") if not is_reference(payload) else "none is configured here."
            return f"{problem} The remedy is --store, or {STORE_VARIABLE}."
    return None


def _check_content(payloads: Iterable[Payload]) -> None:
    if problem := lacking_in(payloads):
        raise StoreFailed("which large payloads are kept", problem)


def _is_aside(fact: Fact) -> bool:
    taken_over = isinstance(fact, facts.Returned) and fact.ref == ids.FORK
    return taken_over or (isinstance(fact, facts.Returned | facts.Lost) and ids.is_archive(fact.ref))


def patch_of(event: HistoryEvent) -> str:
    """Return the name that `workflow.patched` was given; nothing for other marks."""
    details = event.marker_recorded_event_attributes.details
    try:
        return str(decode(details["patch-data"].payloads[0].data)["id"]) if "patch-data" in details else ""
    except (ValueError, LookupError, TypeError):
        return ""


def _agent_failure(failure: FailureProto) -> Failure:
    """Return why a called agent failed, and what it used."""
    details = []
    with suppress(ValueError):
        details = [decode(data) for data in _data(failure.application_failure_info.details.payloads)]
    return failure_of(failure).model_copy(update={"used": results.used(details)})
