"""The workflow for a single agent invocation.

It keeps a log, asks the core for the next step, and schedules that step. Signal and update handlers only append to the
log; the main loop reads it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from waystation.core import ids
from waystation.core.contract import (
    ANSWER_UPDATE,
    CHILD_ENDED_SIGNAL,
    MAX_REPORT_BYTES,
    PARKED_SIGNAL,
    WORKFLOW,
    InvocationReport,
    SessionLink,
    diff_state,
)
from waystation.core.log import (
    CANCEL,
    END,
    FORK,
    NOT_FOUND,
    START,
    Began,
    CallModel,
    CallRef,
    Cancel,
    CancelRequested,
    Ended,
    EndStatus,
    Fail,
    Failure,
    Finish,
    Log,
    MessageJoined,
    Perform,
    Refused,
    Wait,
    begin_entry,
    is_working,
    next_step,
    responses,
)
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import Carried, entries_to_json, parse_carried
from waystation.workflows.continue_as_new import ContinueAsNew, take_over
from waystation.workflows.inbox import Inbox
from waystation.workflows.log_writer import LogWriter
from waystation.workflows.ports import (
    NO_ARGUMENT,
    ResultElsewhere,
    data_of,
    hand_over,
    input_data,
    is_elsewhere,
    measure,
    now,
    paged,
    raw,
    trace,
    unless_closed,
)
from waystation.workflows.scheduler import Scheduler
from waystation.workflows.visibility import Visibility

CANCEL_GRACE_S = 30.0
"""How long an invocation waits for calls in flight to return after it has asked them to stop."""
TURNS_TO_DELIVER = 8
"""An upper bound on the number of event loop turns between the arrival of an activity's result and its log entry."""


class DeadlineTimer:
    """Wakes the workflow for deadlines and reminders. It starts a timer only if none fires early enough.

    A timer that is no longer needed still fires, because canceling it would also add history events.
    """

    def __init__(self, fire: Callable[[], None]) -> None:
        self._fire = fire
        self._task: asyncio.Task[None] | None = None
        self.until: float | None = None
        """When the last timer started will fire, in seconds since 1970, or None if it has fired or none was started."""

    def arm(self, moment: float | None) -> bool:
        """Make sure that a timer fires at `moment` or earlier. Return whether this starts one; None needs no timer."""
        if moment is None or (self.until is not None and self.until <= moment):
            return False

        async def wake() -> None:
            await workflow.sleep(max(moment - now(), 0.001), summary="deadline")
            if self.until == moment:
                self.until = None
            self._fire()

        self.until = moment
        self._task = asyncio.create_task(wake())
        return True


class SessionReporter:
    """Reports an invocation's progress to its session, if the invocation has one. Its signals contain only numbers."""

    def __init__(self) -> None:
        self._since = 1
        """Number of entries that the session has collected or has been asked to collect. The session knows the first
        entry from the start."""
        self._state: JsonObject | None = None
        self._parked = workflow.info().continued_run_id is not None
        """Whether the session might no longer be the parent workflow."""
        self._nudge: asyncio.Task[None] | None = None

    def waiting(self, log: Log, *, flushing: bool) -> None:
        """Signal the session if the invocation is only waiting for pending calls and has entries since the last signal.

        The session can then handle another message. So wait until no writes to `user:` and `app:` state are in flight.
        """
        link = _link(log)
        if link is None or is_working(log.state) or log.length <= self._since or not log.state.waiting():
            return
        if flushing and workflow.patched(ids.FLUSH_BEFORE_PARKING):
            return
        self._parked = True
        self._since, self._state = log.length, log.state.session.values
        self._nudge = asyncio.create_task(_tell(link, PARKED_SIGNAL, {"invocation": link.number, "at": self._since}))

    def report(self, log: Log, *, search_attributes: bool) -> InvocationReport | None:
        """Return a report about everything since the last one, or None for an invocation without a session.

        If the entries are too large, or an earlier run recorded some of them, the report has no entries, and the
        session reads the history.
        """
        link = _link(log)
        if link is None or log.state.input is None:
            return None
        if self._since < log.entries_before:  # the session must read an earlier run's entries from that run's history
            return InvocationReport(since=self._since, search_attributes=search_attributes)
        new = log.since(self._since)
        entries = entries_to_json(new)
        delta, removed = diff_state(
            log.state.input.state if self._state is None else self._state, log.state.session.values
        )
        return InvocationReport(
            since=self._since,
            entries=tuple(entries) if len(encode(entries)) <= MAX_REPORT_BYTES else None,
            state_delta=delta,
            removed_keys=removed,
            joined=tuple(e.body.join for e in new if isinstance(e.body, MessageJoined) and e.body.join is not None),
            standing=log.state.approvals.standing,
            search_attributes=search_attributes,
        )

    async def ended(self, log: Log) -> None:
        """Signal the end of the invocation if the session might no longer be its parent workflow."""
        if (link := _link(log)) and self._parked:
            await _tell(link, CHILD_ENDED_SIGNAL, {"invocation": link.number})


def _find_effects(log: Log, scheduler: Scheduler) -> list[CallRef]:
    """Return the calls in flight whose outcome operators may have to find out."""
    refs = [ref for ref in scheduler.in_flight if isinstance(ref, CallRef)]
    return [ref for ref in refs if responses.matters(log.state.calls[ref.function_call_id])]


def _link(log: Log) -> SessionLink | None:
    # A fork only reads the session of its source; the fork is not part of that session.
    started = log.state.input
    return started.session if started and not started.fork else None


def _tell(link: SessionLink, name: str, content: JsonObject) -> Coroutine[Any, Any, None]:
    # Without a run ID, the signal goes to the session's latest run.
    session = workflow.get_external_workflow_handle(link.id)
    return unless_closed(session.signal(name, raw(encode(content))), "session.gone")


# Do not list Exception here: it includes NondeterminismError, which must stay retryable so that a rollback fixes it.
# No user code runs in a workflow, so the sandbox would only check Waystation's code. Tests replay that in the sandbox.
@workflow.defn(
    name=WORKFLOW, sandboxed=False, failure_exception_types=[RuntimeError, TypeError, ValueError, LookupError]
)
class AgentInvocation:
    """One invocation of an agent. The wire contract describes its input, result, signal, update and queries."""

    # Pass the input to the constructor, because a continued run may receive answers before `run` starts.
    @workflow.init
    def __init__(self, params: RawValue) -> None:
        info = workflow.info()
        carried: Carried | None = None
        self._log = Log(info.workflow_id)
        # If the input is not in this worker's store, let `run` fail: an error raised here would leave tasks running.
        if (
            info.continued_run_id
            and not is_elsewhere(params)
            and (previous := parse_carried([data_of(params.payload)]))
        ):
            started, carried = previous
            self._log = carried.snapshot.restored(info.workflow_id, started)
        self._log.state.run = info.first_execution_run_id
        self._carried = carried
        self._writer = LogWriter(self._log)
        self._visibility = Visibility(carried, self._log.state.input)
        self._scheduler = Scheduler(self._writer, self._visibility, carried.children if carried else {})
        self._inbox = Inbox(self._writer, self._scheduler, carried)
        self._continue_as_new = ContinueAsNew(carried, self._writer, self._scheduler, self._visibility)
        self._session = SessionReporter()
        self._timer = DeadlineTimer(self._writer.advance)
        self._complete = False
        """Whether results have arrived in this workflow task. They come last, so all of the task's input has been
        processed."""
        self._stopped_for_flush = self._stopped_effects = False

    @workflow.run
    async def run(self, params: RawValue) -> RawValue:
        """Run the invocation until it ends."""
        filler = asyncio.create_task(self._fill_tasks())
        try:
            data = input_data(params)
            if self._carried:
                hand_over(START, self._carried, len(data))
            else:
                parent = workflow.info().parent
                caller, run_id = (parent.workflow_id, parent.run_id) if parent else ("", "")
                body: Began | Refused = Refused(NOT_FOUND.message)
                if not is_elsewhere(params):
                    body = begin_entry([data], parent=caller, parent_run=run_id)
                self._writer.record(START, body)
                if isinstance(body, Began):
                    self._visibility.begin(body.input)
                hand_over(START, body, len(data))
            return await self._loop()
        except (ApplicationError, ResultElsewhere):
            raise
        except Exception as error:  # noqa: BLE001  # an invocation fails rather than blocks
            workflow.logger.exception("invocation.faulted")
            raise ApplicationError(
                f"Internal Waystation error: {type(error).__name__}.", type="EngineFault", non_retryable=True
            ) from None
        finally:
            filler.cancel()

    async def _loop(self) -> RawValue:
        started = self._log.state.input
        try:
            if started and started.fork and not self._carried:
                self._writer.record(FORK, await take_over(self._writer, self._visibility))
            while True:
                self._scheduler.stop_unwanted()
                self._scheduler.notify()
                self._scheduler.ask_operators()
                step = next_step(self._log)
                messages = self._inbox.signals, self._inbox.updates
                if self._continue_as_new.due(step, messages, complete=self._complete):
                    step = Wait()
                match step:
                    case CallModel():
                        self._scheduler.call_model(step)
                    case Perform(calls):
                        self._scheduler.perform(calls)
                        await self._change()
                    case Wait():
                        is_parked = bool(self._log.state.waiting()) and not is_working(self._log.state)
                        self._session.waiting(self._log, flushing=is_parked and self._scheduler.flush_scopes())
                        if not is_working(self._log.state):
                            trace(self._log, over=False)
                        await self._change()
                    case Finish() | Fail() if (
                        await self._stop_effects()
                        or await self._flush_scopes()
                        or await self._scheduler.wait_for_notifications()
                        or await self._scheduler.wait_for_questions()
                        or await self._scheduler.events.announce_end(step)
                    ):
                        continue
                    case Finish(reason):
                        return await self._finish(reason)
                    case Fail(failure):
                        raise await self._fail(failure)
                    case Cancel():
                        raise asyncio.CancelledError
        except asyncio.CancelledError:
            await self._cancel()
            raise

    async def _change(self) -> None:
        """Publish the state, then wait for a new log entry, an arrived result or a fired timer.

        Raise any exception that occurred outside the main loop.
        """
        writer, scheduler, timer = self._writer, self._scheduler, self._timer
        measure(self._log)
        published = self._visibility.publish(self._log.state)
        if timer.arm(self._log.state.next_deadline()) or published:
            writer.note_command()
        arrived, arrivals = self._arrived(), scheduler.arrivals
        self._complete = False
        await workflow.wait_condition(lambda: self._arrived() != arrived or writer.fault is not None)
        self._complete = scheduler.arrivals > arrivals
        if writer.fault:
            raise writer.fault

    def _arrived(self) -> tuple[int, int, float | None]:
        """Return a value that changes when a message or a result arrives or a timer fires."""
        return self._log.length, self._scheduler.arrivals, self._timer.until

    async def _fill_tasks(self) -> None:
        """Make sure that no workflow task in which something arrives stays empty."""
        while True:
            arrived = self._arrived()
            await workflow.wait_condition(lambda: self._arrived() != arrived)  # noqa: B023  # awaited at once
            await workflow.wait_condition(lambda: True)  # the main loop reacts first
            self._writer.fill_task()

    # Ends.

    async def _flush_scopes(self) -> bool:
        """Flush all writes to `user:` and `app:` state. Return whether this had to wait."""
        waited = False
        # A call's writes are flushed together with its batch. Stop the work in flight, because the batch's other calls
        # might never end.
        if self._scheduler.in_flight and not self._stopped_for_flush and self._log.state.holds_scopes_back():
            waited = self._stopped_for_flush = True
            await workflow.wait(self._scheduler.stop(), timeout=CANCEL_GRACE_S)
        while self._scheduler.flush_scopes():
            waited = True
            await self._scheduler.wait_for_flush()
            if self._writer.fault:
                raise self._writer.fault
        return waited

    async def _stop_effects(self) -> bool:
        """Stop the calls in flight whose outcome operators may have to find out, so that the log receives it.

        Return whether there were any.
        """
        effects = [str(ref) for ref in _find_effects(self._log, self._scheduler)]
        if self._stopped_effects or not effects or not workflow.patched(ids.ASKS_OUTCOMES):
            return False
        self._stopped_effects = True
        await workflow.wait(self._scheduler.stop(effects), timeout=CANCEL_GRACE_S)
        self._scheduler.ask_operators(_find_effects(self._log, self._scheduler))
        return True

    async def _stop_children(self) -> None:
        """Cancel the called agents that the server does not cancel when this run ends."""
        if running := self._scheduler.stop(self._scheduler.children):
            await workflow.wait(running, timeout=CANCEL_GRACE_S)

    async def _finish(self, reason: str | None) -> RawValue:
        await self._stop_children()
        await self._end("completed")
        report = self._session.report(self._log, search_attributes=self._visibility.discovered)
        return raw(self._log.state.result(reason).model_copy(update={"report": report}).fitted().encode())

    async def _fail(self, failure: Failure) -> ApplicationError:
        self._scheduler.stop()
        await self._stop_children()
        await self._end("failed")
        used = self._log.state.used.model_dump(mode="json", exclude_defaults=True)
        return ApplicationError(failure.message, used, type=failure.error_type, non_retryable=True)

    async def _cancel(self) -> None:
        self._writer.record(CANCEL, CancelRequested())
        # Let results that arrived in this workflow task reach the log first. Canceling their tasks would lose them.
        for _ in range(TURNS_TO_DELIVER):
            await asyncio.sleep(0)
        if running := self._scheduler.stop():
            await workflow.wait(running, timeout=CANCEL_GRACE_S)
        self._scheduler.ask_operators()
        self._scheduler.ask_operators(_find_effects(self._log, self._scheduler))
        await self._scheduler.wait_for_questions()
        await self._flush_scopes()
        await self._scheduler.events.announce_end(Cancel())
        await self._end("cancelled")

    async def _end(self, status: EndStatus) -> None:
        """Record the end, publish it, and signal it to the session if necessary."""
        self._writer.record(END, Ended(status))
        self._writer.note_command()
        self._visibility.publish(self._log.state)
        trace(self._log, over=True)
        measure(self._log)
        await self._session.ended(self._log)

    # External messages.

    @workflow.signal(dynamic=True)
    def signalled(self, name: str, values: Sequence[RawValue]) -> None:
        """Handle a signal with any name. Signals that do not count are recorded as ignored."""
        self._inbox.take_signal(name, values)

    @workflow.update(name=ANSWER_UPDATE, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def submit_answer(self, params: RawValue = NO_ARGUMENT) -> JsonObject:
        """Record an answer and return the receipt."""
        return await self._inbox.take_answer(params)

    @submit_answer.validator
    def _check_answer(self, params: RawValue = NO_ARGUMENT) -> None:
        self._inbox.check_answer(params)

    @workflow.query
    def pending(self) -> list[JsonObject]:
        """Return the pending calls."""
        return [call.model_dump(mode="json") for call in self._log.state.pending()]

    @workflow.query
    def events(self, start: int = 0) -> list[JsonObject]:
        """Return the events from index `start` onward, as many as fit into one query result.

        Events from earlier runs are not included. The number in the first event's ID shows where the result starts.
        """
        return paged(self._log.state.events, start - self._log.state.events_before)

    @workflow.query
    def state(self) -> JsonObject:
        """Return the state, including `temp:` keys."""
        return self._log.state.session.values
