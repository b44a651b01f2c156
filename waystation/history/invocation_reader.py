"""Build the log of an invocation from its histories.

A long invocation continues as new. Each of its runs refers to the previous run and carries a snapshot of the state.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import RetryState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.update.v1 import Request
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import ids
from waystation.core.contract import ANSWER_UPDATE, EVENT_WORKFLOW, WORKFLOW, InvocationInput
from waystation.core.errors import ForeignHistory, WaystationError
from waystation.core.log import FORK, EndStatus, Log, call_id_of
from waystation.core.projection import CHILD, HELD_TOOL, MODEL, Carried, Fact, Fetch, Projection, extend_log, facts
from waystation.history.history_events import (
    COMMANDS,
    SILENT,
    TASK_IN_FLIGHT,
    EventType,
    carried_by,
    check_content,
    continued_as,
    continues,
    decode_events,
    describe_missing,
    get_attributes,
    get_time_s,
    get_workflow_type,
    is_local_activity,
    loss_of,
    patch_of,
    payloads_of,
    read_json_content,
    read_json_payloads,
    read_local_activity,
    read_target_result,
    scheduled_by,
    starts_target,
)
from waystation.history.history_fetch import HistoryPoll, fetch_or_none
from waystation.history.history_files import SavedHistory

_ENDINGS: dict[int, EndStatus] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continued",
}


_NO_ATTEMPTS_LEFT = RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED


@dataclass(frozen=True, slots=True)
class EmptyTask:
    """A completed workflow task that issued no commands and was immediately followed by another workflow task."""

    event_id: int
    """ID of the event that started the task."""
    time: float
    later: list[Fact] = field(default_factory=list)
    """The facts that followed this task. They are held back until the task that applied them is known."""


class HistoryReader:
    """Converts the events of one run to facts, in order.

    It also resolves the event IDs that later events use to refer to earlier ones.
    """

    def __init__(self) -> None:
        self.last_event_id = 0
        self._scheduled: dict[int, str] = {}
        self._followed: set[int] = set()
        self._targets: set[int] = set()
        """IDs of the events that scheduled the targets of calls."""
        self._tools: dict[int, int] = {}
        """Maximum number of attempts of each tool call, by the ID of the event that scheduled it."""
        self._admitted: dict[int, Request] = {}
        self._task = (0, 0.0)
        """ID and time of the event that started the latest workflow task."""
        self._completed = False
        """Whether the latest task has completed but has not been reported yet."""
        self._commands = False
        """Whether any command was recorded after the last reported task."""
        self._empty: list[EmptyTask] = []
        """The empty tasks after the last reported task."""

    def read(self, events: Iterable[HistoryEvent]) -> Iterator[Fact]:
        """Yield the facts in `events`. Events that have already been read are skipped."""
        for event in events:
            if event.event_id > self.last_event_id:
                if event.event_type not in TASK_IN_FLIGHT:
                    self.last_event_id = event.event_id
                if self._completed:
                    yield from self._complete_task(event)
                if event.event_type not in SILENT:
                    for fact in self._read(event):
                        if self._empty and not isinstance(fact, facts.Closed):
                            self._empty[-1].later.append(fact)
                        else:
                            yield from self._release(len(self._empty))
                            yield fact
        yield from self._complete_task(None)

    def _complete_task(self, following: HistoryEvent | None) -> Iterator[Fact]:
        """Report the completed workflow task once the event that follows it is known.

        Rejected updates leave empty tasks, and so did results before decision 0039. A replay merges an empty task into
        the task that immediately follows it, and uses the time of that later task. There is one exception. If the event
        after a task accepts an update, a replay first applies everything that arrived before the last empty task
        preceding the update, at the time of that empty task. This matches `find_end_index_of_next_wft_seq` in the SDK's
        core, and must follow its newer rule (`TEMPORAL_USE_WFT_CHUNKING_V2`) when a release contains it.
        """
        if not self._completed:
            return
        self._completed = False
        kind = following.event_type if following else None
        if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED and not self._commands:
            self._empty.append(EmptyTask(*self._task))
            return
        if following and kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            accepted = following.workflow_execution_update_accepted_event_attributes
            before = [t for t in self._empty if t.event_id < accepted.accepted_request_sequencing_event_id]
            if before:
                yield from self._release(len(before) - 1)
                yield facts.TaskCompleted(before[-1].time)
        yield from self._release(len(self._empty))
        yield facts.TaskCompleted(self._task[1])
        self._commands = False

    def _release(self, count: int) -> Iterator[Fact]:
        """Remove the first `count` empty tasks and yield the facts that followed them."""
        released, self._empty = self._empty[:count], self._empty[count:]
        for task in released:
            yield from task.later

    def _read(self, event: HistoryEvent) -> Iterator[Fact]:
        self._commands = self._commands or event.event_type in COMMANDS
        attributes = get_attributes(event)
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                yield self._started(attributes)
            case EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._task = (event.event_id, get_time_s(event))
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                self._completed = True
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                payloads = attributes.input.payloads
                yield facts.Signalled(attributes.signal_name, read_json_payloads(payloads), describe_missing(payloads))
            case EventType.EVENT_TYPE_MARKER_RECORDED if is_local_activity(event):
                yield _read_local(event)
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                if ref := ids.parse_not_found(mark := patch_of(event)):
                    yield facts.NotFound(ref)
                elif ids.is_arrival(mark):
                    yield facts.Arrived(mark)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED:
                # Only updates reapplied after a reset have this event. Keep the request, because the event that accepts
                # the update does not repeat it.
                self._admitted[event.event_id] = attributes.request
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                admitted = attributes.accepted_request_sequencing_event_id
                update = self._admitted.pop(admitted, attributes.accepted_request).input
                if update.name == ANSWER_UPDATE:
                    yield facts.UpdateAccepted([read_json_content(update.args.payloads)])
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
                yield facts.CancelAsked()
            case EventType.EVENT_TYPE_TIMER_FIRED:
                yield facts.TimerFired()
            case ending if ending in _ENDINGS:
                yield facts.Closed(_ENDINGS[ending], get_time_s(event))
            case _:
                # Skip the results of activities that archive the log or that the workflow no longer watches. Content
                # that a fork copies is read at the start of the next run.
                yield from (fact for fact in self._read_activity(event, attributes) if not _is_irrelevant(fact))

    def _started(self, attributes: Any) -> Fact:
        if attributes.workflow_type.name != WORKFLOW:
            raise ForeignHistory(
                f"The history belongs to a workflow of type {attributes.workflow_type.name!r}, not {WORKFLOW!r}."
            )
        check_content(attributes.input.payloads)
        return facts.Started(
            read_json_payloads(attributes.input.payloads),
            continues=bool(attributes.continued_execution_run_id),
            parent=attributes.parent_workflow_execution.workflow_id,
            parent_run=attributes.parent_workflow_execution.run_id,
            first_run=attributes.first_execution_run_id or None,
        )

    def _read_activity(self, event: HistoryEvent, attributes: Any) -> Iterator[Fact]:
        if hasattr(attributes, "workflow_type") and attributes.workflow_type.name == EVENT_WORKFLOW:
            return  # its outcome does not matter to the invocation
        if starts_target(event):
            self._targets.add(event.event_id)
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                kind, ref = attributes.activity_type.name, attributes.activity_id
                self._scheduled[event.event_id] = ids.parse_target(ref) or ref
                if starts_target(event):  # its input contains no position
                    self._tools[event.event_id] = attributes.retry_policy.maximum_attempts
                    return
                if kind == CHILD.name:
                    self._scheduled[event.event_id] = call_id_of(ref)
                    self._followed.add(event.event_id)
                if "." in kind or kind == HELD_TOOL.name:
                    self._tools[event.event_id] = attributes.retry_policy.maximum_attempts
                yield facts.Scheduled(ref, read_json_content(attributes.input.payloads), kind == MODEL.name)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
                # If the activity polls a called agent, the workflow ignores its later result, and a new activity
                # reports how the agent ends.
                if attributes.scheduled_event_id in self._followed:
                    self._scheduled[attributes.scheduled_event_id] = ids.archive(0)
                elif attributes.scheduled_event_id not in self._tools:
                    yield facts.Abandoned(self._scheduled[attributes.scheduled_event_id])
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                number = attributes.scheduled_event_id
                if number in self._targets:
                    content = read_target_result(attributes.result.payloads)
                    yield facts.Returned(self._scheduled[number], content, target=True)
                else:
                    content = read_json_content(attributes.result.payloads)
                    yield facts.Returned(self._scheduled[number], content, followed=number in self._followed)
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                self._scheduled[event.event_id] = attributes.workflow_id.rsplit("/", 1)[-1]
            case EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED:
                self._scheduled[event.event_id] = attributes.nexus_header.get(ids.CALL_HEADER, "")
            case EventType.EVENT_TYPE_NEXUS_OPERATION_COMPLETED:
                content = read_target_result([attributes.result])
                yield facts.Returned(self._scheduled[attributes.scheduled_event_id], content, target=True)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                number = attributes.initiated_event_id
                if number in self._targets:
                    content = read_target_result(attributes.result.payloads)
                    yield facts.Returned(self._scheduled[number], content, target=True)
                else:
                    content = read_json_content(attributes.result.payloads)
                    yield facts.Returned(self._scheduled[number], content, child=True)
            case _:
                if failure := loss_of(event):
                    number = scheduled_by(attributes)
                    if number in self._tools and getattr(attributes, "retry_state", 0) == _NO_ATTEMPTS_LEFT:
                        failure = failure.model_copy(update={"attempts": self._tools[number]})
                    yield facts.Lost(self._scheduled[number], failure, target=number in self._targets)


def _read_local(event: HistoryEvent) -> Fact:
    ran = read_local_activity(event)
    result: facts.Returned | facts.Lost | None = None
    if ran.failure is None:
        result = facts.Returned(ran.id, b"".join(read_json_content(p.payloads) for p in payloads_of(event)))
    elif ran.failure.kind == "cancelled":
        result = facts.Lost(ran.id, ran.failure)
    return facts.RanLocally(result, ran.ended, ran.number)


def build_log(histories: Sequence[WorkflowHistory], log: Log | None = None) -> Log:
    """Build the log of an invocation from the histories of its runs.

    Args:
        histories: The histories, oldest first.
        log: The log of the runs before them. If it is missing although there were earlier runs, the new log begins with
            the snapshot that the first run carries.

    Raises:
        ForeignHistory: A history is damaged or missing, or does not belong to an invocation.
        StoreFailed: A payload is not in this process's store.
    """
    for history in _own_runs(histories):
        projection = Projection(history.workflow_id, log)
        try:
            projection.feed(HistoryReader().read(history.events))
            projection.flush()
        except WaystationError:
            raise
        except Exception as error:  # hand-edited histories raise many kinds of errors
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ForeignHistory(
                f"The history of {history.workflow_id!r} is inconsistent ({reason}). The file may have been edited. "
                "Save it again."
            ) from error
        log = projection.log
    assert log is not None
    return log


def _is_irrelevant(fact: Fact) -> bool:
    is_fork_source = isinstance(fact, facts.Returned) and fact.ref == str(FORK)
    return is_fork_source or (isinstance(fact, facts.Returned | facts.Lost) and ids.is_archive(fact.ref))


async def fetch_log_before(client: Client, id: str, first: HistoryEvent, fetch: Fetch) -> Log:
    """Return the log up to the start of the run whose first event is `first`.

    The log is built from the histories of the earlier runs. If the server has deleted some of these histories, the
    missing part of the log is read from the store.

    Raises:
        ForeignHistory: A history is damaged or was not recorded by Waystation.
        StoreFailed: The missing part is not in the store.
    """
    earlier: list[WorkflowHistory] = []
    carried = carried_by(first)
    while carried and not carried[1].forked and (history := await fetch_run(client, id, carried[1].run_id)):
        earlier += await decode_histories([history], client.data_converter)
        carried = carried_by(earlier[-1].events[0])
    log = Log(id)
    if carried:
        await extend_log(log, carried[1], fetch)
    return build_log(earlier[::-1], log)


async def fetch_log(histories: Sequence[WorkflowHistory], fetch: Fetch) -> Log:
    """Return the complete log for the runs in a file. The entries of runs missing from the file come from the store.

    Raises:
        ForeignHistory: The file is damaged.
        StoreFailed: The earlier entries are not in the store.
    """
    first = _own_runs(histories)[0]
    log = Log(first.workflow_id)
    if carried := carried_by(first.events[0]):
        await extend_log(log, carried[1], fetch)
    return build_log(histories, log)


def _own_runs(histories: Sequence[WorkflowHistory]) -> Sequence[WorkflowHistory]:
    """Return the runs that belong to the log of an invocation, without the run of a fork that only reads its source."""
    for number, history in enumerate(histories[1:], 1):
        if (carried := carried_by(history.events[0])) and carried[1].forked:
            return histories[number:]
    return histories


def restore_carried_log(log: Log, histories: Sequence[WorkflowHistory]) -> Log:
    """Return the log that precedes `log`: the snapshot that the first run carries, or an empty log if there is none."""
    carried = carried_by(_own_runs(histories)[0].events[0]) if log.entries_before else None
    return carried[1].snapshot.restored(log.invocation_id, carried[0]) if carried else Log(log.invocation_id)


async def fetch_run(client: Client, id: str, run_id: str | None = None) -> WorkflowHistory | None:
    """Return the history of a run, by default the latest, or None if the run does not exist or was deleted.

    The payloads are not decoded.
    """
    return await fetch_or_none(client.get_workflow_handle(id, run_id=run_id).fetch_history())


async def fetch_runs(client: Client, last: WorkflowHistory) -> list[WorkflowHistory]:
    """Return the histories of all runs up to `last`, oldest first.

    Runs that the server has deleted are missing. The payloads are not decoded.
    """
    earlier: WorkflowHistory | None = last
    runs = []
    while earlier:
        runs.append(earlier)
        run_id = continues(earlier.events[0])
        earlier = await fetch_run(client, last.workflow_id, run_id) if run_id else None
    return runs[::-1]


async def fetch_saved_history(client: Client, last: WorkflowHistory) -> SavedHistory:
    """Return the histories of all runs up to `last`, together with the histories of the agents they called.

    Runs and agents that the server has deleted are missing. The payloads are not decoded.
    """
    runs = await fetch_runs(client, last)
    called = []
    for id in dict.fromkeys(id for run in runs for id in called_agent_ids(run)):
        if latest := await fetch_run(client, id):
            called.append(await fetch_saved_history(client, latest))
    return SavedHistory(runs, called)


def called_agent_ids(history: WorkflowHistory) -> list[str]:
    """Return the workflow IDs of the agents that one run of an invocation called."""
    if get_workflow_type(history) != WORKFLOW:
        return []
    initiated = (event.start_child_workflow_execution_initiated_event_attributes for event in history.events)
    return [child.workflow_id for child in initiated if child.workflow_type.name == WORKFLOW]


async def decode_histories(histories: Iterable[WorkflowHistory], converter: DataConverter) -> list[WorkflowHistory]:
    """Return histories with payloads fetched from the store and decoded by the codec. See `decode_events`.

    Raises:
        StoreFailed: The payload store could not be read.
    """
    return [WorkflowHistory(run.workflow_id, await decode_events(run.events, converter)) for run in histories]


async def follow_log(client: Client, handle: WorkflowHandle[Any, Any], fetch: Fetch) -> AsyncIterator[Log]:
    """Yield the log each time the history grows, across all runs, until the invocation ends.

    After a reset, a new log for the new run is yielded, unless the handle is for a specific run. The log of a fork is
    yielded only once the fork has read its source, or if it has failed or ended.
    """
    log: Log | None = None
    run_id = handle.run_id
    while True:
        reader = HistoryReader()
        projection: Projection | None = None
        next_run_id: str | None = None
        carried: tuple[InvocationInput, Carried] | None = None
        pages = HistoryPoll(client, handle.id, run_id)
        while pages.more:
            page = await pages.page()
            if not handle.run_id and (next_run_id := await pages.replaced_by()):
                log = None
                break
            if projection is None:
                carried = carried_by(page[0]) if page else None
                known = None if carried and carried[1].forked else log
                projection = Projection(handle.id, known or await fetch_log_before(client, handle.id, page[0], fetch))
            projection.feed(reader.read(page))
            projection.flush()
            log = projection.log
            next_run_id = continued_as(page[-1]) if page else next_run_id
            # The first run of a fork only reads its source, so do not yield the log of this run unless it has ended.
            if (
                carried
                or not (log.state.input and log.state.input.fork)
                or log.state.outcome.failure
                or log.state.outcome.ended
            ):
                yield log
        if next_run_id is None:
            return
        run_id = next_run_id
