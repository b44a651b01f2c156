"""The workflow for a single session: it receives messages, starts an invocation for each one, and records reports.

Its history is the transcript: it contains the input of each invocation that the session starts and the reports of the
invocations. The decisions are made in `waystation.core.session_log`.
"""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from waystation.core import ids
from waystation.core.contract import CHILD_ENDED_SIGNAL, CLOSE, PARKED_SIGNAL, SEND, SESSION_WORKFLOW, InvocationInput
from waystation.core.conversation import Transcript
from waystation.core.errors import InvalidInput, SessionRefused
from waystation.core.log import NOT_FOUND
from waystation.core.payload import JsonObject, encode
from waystation.core.session_log import (
    OPEN_STATUSES,
    SessionLog,
    SessionMessage,
    parse_message,
    parse_nudge,
    parse_session,
    parse_state_change,
)
from waystation.workflows.inbox import Arrivals, sent_data, typed
from waystation.workflows.ports import NO_ARGUMENT, ResultElsewhere, input_data, paged, raw, result_of, signal_data
from waystation.workflows.session_invocations import SessionInvocations
from waystation.workflows.visibility import SessionVisibility

MAX_SIGNALS = 4_000
"""Once a run has received this many signals, valid or not, and accepted updates, the session continues as new as soon
as no invocation is running."""


# Do not list Exception here, so that NondeterminismError stays retryable, as in AgentInvocation.
@workflow.defn(
    name=SESSION_WORKFLOW, sandboxed=False, failure_exception_types=[RuntimeError, TypeError, ValueError, LookupError]
)
class AgentSession:
    """A user's conversation with an agent. The wire contract describes its input, signals, updates and queries."""

    def __init__(self) -> None:
        self._begun: SessionInvocations | None = None
        self._messages = 0
        self._signals = 0
        self._early: list[tuple[str, Sequence[bytes] | None]] = []
        """Signals that arrived before the input had been parsed. `run` handles them first."""
        self._fault: Exception | None = None
        """An exception caused by an early signal."""
        self._cut_from = 0
        self._arrivals = Arrivals()
        self._visibility = SessionVisibility()

    @property
    def _invocations(self) -> SessionInvocations:
        assert self._begun is not None
        return self._begun

    @property
    def _log(self) -> SessionLog:
        return self._invocations.log

    @workflow.run
    async def run(self, params: RawValue) -> RawValue:
        """Handle messages until the session has been closed and all its invocations have ended."""
        info = workflow.info()
        try:
            data, continues = input_data(params), info.continued_run_id is not None
            log = SessionLog(info.workflow_id, parse_session(data, info.workflow_id, continues=continues))
        except InvalidInput as error:
            raise ApplicationError(str(error), type="InvalidInput", non_retryable=True) from None
        self._begun = invocations = SessionInvocations(log, self._visibility)
        invocations.fault = self._fault
        for name, early in self._early:
            self._take(name, early)
        for turn in log.open:  # these invocations may have ended between the runs
            invocations.read(turn.n)
        try:
            return await self._loop(log, invocations)
        except asyncio.CancelledError:
            log.closing = True
            log.queue.clear()
            await invocations.cancel()
            self._visibility.publish(log)
            raise

    async def _loop(self, log: SessionLog, invocations: SessionInvocations) -> RawValue:
        while True:
            if not self._cut_due():
                await self._start()
            self._visibility.publish(log)
            if log.over and invocations.at_rest and workflow.all_handlers_finished():
                return raw(encode({"status": "closed", "invocations": log.started}))
            # Continue as new only while no invocation is running. A waiting invocation signals its end to the next run.
            invocations.changed = False
            if self._cut_due() and log.current is None and invocations.only_following:
                await self._continue_as_new(log, invocations)
                await self._start(ids.READ_BEFORE_START)
            await workflow.wait_condition(lambda: invocations.changed or invocations.fault is not None)
            if invocations.fault:
                raise invocations.fault

    async def _start(self, mark: str | None = None) -> None:
        """Start the next invocation if one is due, once the session knows what the others have done so far.

        An invocation that waits may have been answered, and may even have ended, without a message to the session yet.
        `mark` is the patch marker with which a run records that it reads the progress of the others here.
        """
        if self._log.due and self._log.status == "waiting" and (mark is None or workflow.patched(mark)):
            progress = await self._find_progress()
            await self._invocations.readings_done()
            await self._invocations.read_all(progress)
        self._invocations.start()

    async def _find_progress(self) -> Sequence[int]:
        return await self._arrivals.applied(self._invocations.known)

    def _cut_due(self) -> bool:
        """Return whether the session should continue as new as soon as no invocation is running."""
        started = self._invocations.started
        return started >= self._cut_from and (
            started >= self._log.given.cut_after
            or self._messages >= MAX_SIGNALS
            or workflow.info().is_continue_as_new_suggested()
        )

    async def _continue_as_new(self, log: SessionLog, invocations: SessionInvocations) -> None:
        reports = tuple(log.reports)
        transcript = await invocations.archive(reports)
        if transcript is None:
            # Try again after more invocations. Until then, the history can keep growing.
            self._cut_from = invocations.started + log.given.cut_after
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        if tuple(log.reports) != reports or not invocations.only_following:  # the archive is out of date
            invocations.changed = True
            return
        workflow.continue_as_new(raw(log.following(transcript).encode()))

    # External messages.

    @workflow.signal(dynamic=True)
    def signalled(self, name: str, values: Sequence[RawValue]) -> None:
        """Handle a signal with any name. Signals that do not count are recorded as refused."""
        self._signals += 1
        try:
            data = signal_data(values, self._signals)
        except ResultElsewhere as error:
            if self._begun:
                self._begun.fault = error
            self._fault = error
            return
        if self._begun is None:
            self._early.append((name, data))
        else:
            self._take(name, data)

    def _take(self, name: str, data: Sequence[bytes] | None) -> None:
        self._messages += 1
        self._invocations.changed = True
        try:
            if data is None:
                raise InvalidInput(NOT_FOUND.message)
            argument = data[0] if len(data) == 1 else b""
            match name:
                case "send":
                    message = parse_message(argument)
                    self._log.check(message)
                    self._accept(message)
                case "change_state":
                    self._log.change_state(parse_state_change(argument))
                case "close":
                    self._close()
                case "parked" | "child_ended":
                    self._nudged(name, argument)
                case _:
                    raise InvalidInput(f"No signal is named {name[:100]!r}; messages go to {SEND!r}.")
        except (SessionRefused, InvalidInput) as error:
            self._log.refuse(error)
        except Exception as error:  # noqa: BLE001  # the main loop raises it again
            self._invocations.fault = error

    def _nudged(self, name: str, data: bytes) -> None:
        """Read the history of an open invocation that signals that it is waiting or has ended, unless the session
        already knows or is waiting for it to end.

        Anyone can send this signal, so only the invocation's history determines what happened.
        """
        number, at = parse_nudge(data)
        turn = self._log.turns.get(number)
        if turn is None or turn.status not in OPEN_STATUSES:
            return
        if name == PARKED_SIGNAL and at is not None and turn.known < at:
            self._invocations.read(number, at, asked=True)
        elif name == CHILD_ENDED_SIGNAL and not self._invocations.follows(number):
            self._invocations.read(number, asked=True)

    def _accept(self, message: SessionMessage) -> JsonObject:
        receipt = self._log.accept(message)
        self._invocations.changed = True
        self._invocations.send_joined()
        return receipt

    def _close(self) -> None:
        if not self._log.closing:
            self._log.closing = True
            for turn in self._log.open:  # a terminated invocation does not signal its end
                if not self._invocations.follows(turn.n):
                    self._invocations.read(turn.n)
        self._invocations.changed = True

    @workflow.update(name=SEND, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def send(self, params: RawValue = NO_ARGUMENT) -> JsonObject:
        """Accept a message and return a receipt with its invocation's ID, without waiting for the invocation to end.

        Raises:
            ApplicationError: The message was refused.
        """
        if self._begun is None:
            await workflow.wait_condition(lambda: self._begun is not None)
        message = parse_message(result_of(params.payload))
        if message.when_busy != "queue":
            await self._invocations.read_all(await self._find_progress())
            self._invocations.changed = True
        try:
            self._log.check(message)  # the validator cannot check an update that arrives together with the start
        except (SessionRefused, InvalidInput) as error:
            raise typed(error) from None
        self._messages += 1
        return self._accept(message)

    @send.validator
    def _check_send(self, params: RawValue = NO_ARGUMENT) -> None:
        try:
            message = parse_message(sent_data(params, InvalidInput))
            if self._begun is not None and message.when_busy != "reject":
                self._log.check(message)
        except (SessionRefused, InvalidInput) as error:
            raise typed(error) from None

    @workflow.update(name=CLOSE, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def close(self) -> JsonObject:
        """Stop accepting messages. The session ends once its invocations have ended."""
        await workflow.wait_condition(lambda: self._begun is not None)
        self._close()
        return {"status": "closed", "open": len(self._log.open) + len(self._log.queue)}

    @workflow.query
    def events(self, start: int = 0) -> JsonObject:
        """Return the events of this run's transcript from index `start` onward, as many as fit into one result.

        Events that are in the store are not included; `archived` refers to them.
        """
        transcript = Transcript(self._log.id)
        transcript.restore(self._log.given.items)
        for number, time, item in self._invocations.transcript:
            if isinstance(item, InvocationInput):
                transcript.start(number, time, item)
            elif (ref := transcript.add_report(number, item)) is not None:
                transcript.apply(ref)
        return {
            "events": paged(transcript.events, start),
            "archived": [ref.model_dump() for ref in self._log.given.segments],
        }

    @workflow.query
    def state(self) -> JsonObject:
        """Return the state that the next invocation starts with."""
        return self._log.state

    @workflow.query
    def invocations(self) -> JsonObject:
        """Return the session's status, all open and queued invocations, the most recent ended ones, and refusals."""
        log = self._log
        return {
            "started": log.started,
            "refused": log.refused,
            "status": log.status,
            "invocations": [
                turn.model_dump(include={"n", "status", "message", "known"}) | {"id": log.invocation_id(turn.n)}
                for turn in log.turns.values()
            ],
            "refusals": log.refusals,
        }
