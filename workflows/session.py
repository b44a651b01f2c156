"""The workflow that is one session: it takes messages, starts an invocation for each, and keeps what they said.

Its history is the transcript: the input of each invocation it starts, and the report that each gives. What it decides
stands in `waystation.core.session`.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from waystation.core import summary
from waystation.core.errors import InvalidInput, SessionRefused
from waystation.core.payload import JsonObject, decode, encode
from waystation.core.report import Report
from waystation.core.session import SessionLog, refused
from waystation.core.session_data import SessionMessage, TurnStatus, parse_message, parse_nudge, parse_session
from waystation.core.signals import NOT_FOUND
from waystation.core.transcript import Transcript
from waystation.core.wire import (
    CHILD_ENDED_SIGNAL,
    CLOSE,
    MESSAGE_SIGNAL,
    PARKED_SIGNAL,
    SEND,
    SESSION_WORKFLOW,
    WORKFLOW,
    InvocationInput,
    InvocationResult,
)
from waystation.workflows.answers import NOTHING, parsed_message, settled, typed
from waystation.workflows.pending import SessionBoard
from waystation.workflows.ports import ResultElsewhere, input_data, now, paged, raw, result_of, signal_data
from waystation.workflows.readings import Readings, archived, collected
from waystation.workflows.search_attributes import at_start

CANCEL_GRACE_S = 30.0
MAX_SIGNALS = 4_000
"""After so many signals and updates, counted or not, the session continues in a new run, too."""
MAX_INPUT_BYTES = 1_800_000
SETTLED = "settled"
"""Marks, in histories, that it is known who is at work before a message is judged."""
HEARD = "heard"
"""Marks, in histories, that what waited is heard out before the next invocation begins."""


# As for AgentInvocation: NondeterminismError stays retryable.
@workflow.defn(
    name=SESSION_WORKFLOW, sandboxed=False, failure_exception_types=[RuntimeError, TypeError, ValueError, LookupError]
)
class AgentSession:
    """One conversation of a user with an agent. Input, signals, updates and queries: see the wire contract."""

    def __init__(self) -> None:
        self._given: SessionLog | None = None
        self._changed = False
        self._messages = 0
        self._signals = 0
        self._early: list[tuple[str, Sequence[bytes] | None]] = []
        self._children: dict[int, ChildWorkflowHandle[Any, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._handed: set[tuple[int, int]] = set()
        self._readings = Readings()
        self._started = self._cut_from = 0
        self._facts: list[tuple[int, float, InvocationInput] | tuple[int, Report]] = []
        """Of what this run's part of the transcript is made; for queries."""
        self._board = SessionBoard()
        self._fault: Exception | None = None

    @property
    def _log(self) -> SessionLog:
        assert self._given is not None
        return self._given

    @workflow.run
    async def run(self, given: RawValue) -> RawValue:
        """Take messages until the session is closed and nothing is open."""
        info = workflow.info()
        try:
            began, continues = input_data(given), info.continued_run_id is not None
            self._given = SessionLog(info.workflow_id, parse_session(began, info.workflow_id, continues=continues))
        except InvalidInput as error:
            raise ApplicationError(str(error), type="InvalidInput", non_retryable=True) from None
        for name, data in self._early:
            self._take(name, data)
        for turn in self._log.open:  # it may have ended between the runs
            self._begin(self._read(turn.n, None))
        try:
            return await self._loop()
        except asyncio.CancelledError:
            await self._cancel()
            raise

    async def _loop(self) -> RawValue:
        while True:
            if not self._due_cut:
                # One that waited may have ended in the workflow task that brought the message, which comes first.
                if self._log.due and self._log.status == "waiting" and workflow.patched(HEARD):
                    await settled()
                    await self._readings.done()
                self._start()
            self._board.post(self._log)
            if self._log.over and not self._tasks and workflow.all_handlers_finished():
                return raw(encode({"status": "closed", "invocations": self._log.started}))
            # Between two messages, so that no invocation is at work: one that waits tells when it is over.
            self._changed = False
            if self._due_cut and self._log.current is None and not self._tasks_in_the_way:
                await self._continue()
                self._start()
            await workflow.wait_condition(lambda: self._changed or self._fault is not None)
            if self._fault:
                raise self._fault

    def _start(self) -> None:
        begun = self._log.start(workflow.info().run_id)
        if begun is None:
            return
        number, given = begun
        self._started += 1
        if len(given.encode()) > MAX_INPUT_BYTES:
            self._log.end(number, "failed")
            self._changed = True
            return
        self._facts.append((number, now(), given))
        self._begin(self._follow(number, given))

    def _begin(self, step: Coroutine[Any, Any, None]) -> None:
        async def done() -> None:
            try:
                await step
            except Exception as error:  # noqa: BLE001  # the loop raises it again
                self._fault = error
            finally:
                self._tasks.discard(task)
                self._changed = True

        task = asyncio.create_task(done())
        self._tasks.add(task)

    async def _follow(self, number: int, given: InvocationInput) -> None:
        """Have an invocation run to its end."""
        said = given.message if isinstance(given.message, str) else "…"
        status: TurnStatus = "failed"
        result: InvocationResult | None = None
        try:
            child = await workflow.start_child_workflow(
                WORKFLOW,
                raw(given.encode()),
                id=self._log.invocation_id(number),
                result_type=RawValue,
                # No policy that asks to cancel: continuing as new counts as closing. The session cancels them itself.
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=summary.clip(f"{given.agent}: {said}"),
                search_attributes=at_start(given) if self._log.attributes else None,
            )
            self._children[number] = child
            self._hand_on(number)
            returned = await child
            result = InvocationResult.model_validate(decode(result_of(returned.payload)))
            status = result.status
        except (ChildWorkflowError, WorkflowAlreadyStartedError, ValueError):
            result = None
        finally:
            self._children.pop(number, None)
        async with self._readings.lock(number):
            report = result.report if result else None
            if result and report and report.entries is not None and self._log.takes(number, report):
                self._apply(number, report, report.since + len(report.entries))
                self._log.end(number, status, result.next_agent)
                return
        await self._read(number, None, status)

    def _apply(self, number: int, report: Report, length: int) -> None:
        self._log.apply(number, report, length)
        self._facts.append((number, report))

    async def _read(self, number: int, at: int | None, status: TurnStatus | None = None) -> None:
        """Have an invocation's own history read, and apply what the session does not know of it.

        `at` is where it says that it waits; `status` how it is known to have ended, for when it cannot be read.
        """
        async with self._readings.lock(number):
            at = self._readings.begun(number, at)
            turn = self._log.turns.get(number)
            if turn is None or turn.status not in ("running", "waiting") or (at is not None and at <= turn.known):
                return
            found = await collected(number, turn.known, at)
            if found and found.report and self._log.takes(number, found.report):
                self._apply(number, found.report, found.at)
            if found and found.status == "waiting":
                self._log.park(number)
            elif found and found.status != "running":
                self._log.end(number, found.status, found.next_agent)
            elif status:
                self._log.end(number, status)

    def _look(self, number: int, at: int | None) -> None:
        """Have an invocation read because a signal says so."""
        if self._readings.asked(number, at):
            self._begin(self._read(number, at))

    def _hand_on(self, number: int) -> None:
        """Hand messages to an invocation that is at work. Those that do not arrive begin others when it is over."""
        child = self._children.get(number)
        turn = self._log.turns[number]
        for join, said in turn.unconfirmed:
            if child and (number, join) not in self._handed:
                self._handed.add((number, join))
                self._begin(self._hand(child, join, said))

    async def _hand(self, child: ChildWorkflowHandle[Any, Any], join: int, said: SessionMessage) -> None:
        try:
            await child.signal(MESSAGE_SIGNAL, raw(encode({"message": said.message, "join": join})))
        except ApplicationError:
            workflow.logger.info("invocation.gone")

    # Ends.

    @property
    def _due_cut(self) -> bool:
        return self._started >= self._cut_from and (
            self._started >= self._log.given.cut_after
            or self._messages >= MAX_SIGNALS
            or workflow.info().is_continue_as_new_suggested()
        )

    @property
    def _tasks_in_the_way(self) -> bool:
        """Whether more is under way than waiting for the ends of invocations."""
        return len(self._tasks) > len(self._children)

    async def _continue(self) -> None:
        """Go on in a new run."""
        given, reports = self._log.given, tuple(self._log.reports)
        kept = await archived(reports)
        if kept is None:
            self._cut_from = self._started + given.cut_after  # tried again then; the history may grow meanwhile
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        if tuple(self._log.reports) != reports or self._tasks_in_the_way:  # the archive lacks something already
            self._changed = True
            return
        workflow.continue_as_new(raw(self._log.following(kept).encode()))

    async def _cancel(self) -> None:
        """Cancel what is open, and wait a while for it to say how it ended."""
        self._log.closing = True
        self._log.queue.clear()
        for turn in self._log.open:
            if turn.n not in self._children:
                self._begin(self._cancel_elsewhere(turn.n))
        for child in self._children.values():
            child.cancel()
        if self._tasks:
            await workflow.wait(list(self._tasks), timeout=CANCEL_GRACE_S)
        self._board.post(self._log)

    async def _cancel_elsewhere(self, number: int) -> None:
        try:
            await workflow.get_external_workflow_handle(self._log.invocation_id(number)).cancel()
        except ApplicationError:
            workflow.logger.info("invocation.gone")

    # Messages from outside.

    @workflow.signal(dynamic=True)
    def signalled(self, name: str, values: Sequence[RawValue]) -> None:
        """Take any signal. What does not count is noted as refused."""
        self._signals += 1
        try:
            data = signal_data(values, self._signals)
        except ResultElsewhere as error:
            self._fault = error
            return
        if self._given is None:
            self._early.append((name, data))
        else:
            self._take(name, data)

    def _take(self, name: str, data: Sequence[bytes] | None) -> None:
        self._messages += 1
        self._changed = True
        try:
            if data is None:
                raise InvalidInput(NOT_FOUND.message)
            one = data[0] if len(data) == 1 else b""
            match name:
                case "send":
                    said = parse_message(one)
                    self._log.check(said)
                    self._accept(said)
                case "close":
                    self._close()
                case "parked" | "child_ended":
                    self._nudged(name, one)
                case _:
                    raise InvalidInput(f"No signal is named {name[:100]!r}; messages go to {SEND!r}.")
        except (SessionRefused, InvalidInput) as error:
            self._log.refuse(*refused(error))
        except Exception as error:  # noqa: BLE001  # the loop raises it again
            self._fault = error

    def _nudged(self, name: str, data: bytes) -> None:
        """An invocation says that it waits or is over. Anybody may have said so: its own history decides."""
        number, at = parse_nudge(data)
        turn = self._log.turns.get(number)
        if turn is None or turn.status not in ("running", "waiting"):
            return
        if name == PARKED_SIGNAL and at is not None and turn.known < at:
            self._look(number, at)
        elif name == CHILD_ENDED_SIGNAL and number not in self._children:
            self._look(number, None)

    def _accept(self, said: SessionMessage) -> JsonObject:
        receipt = self._log.accept(said)
        self._changed = True
        if self._log.current is not None:
            self._hand_on(self._log.current)
        return receipt

    def _close(self) -> None:
        if not self._log.closing:
            self._log.closing = True
            for turn in self._log.open:  # one that was terminated would not tell
                if turn.n not in self._children:
                    self._begin(self._read(turn.n, None))
        self._changed = True

    @workflow.update(name=SEND, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def send(self, given: RawValue = NOTHING) -> JsonObject:
        """Take a message, and tell at once which invocation it goes to."""
        if self._given is None:
            await workflow.wait_condition(lambda: self._given is not None)
        said = parse_message(result_of(given.payload))
        if said.when_busy != "queue" and workflow.patched(SETTLED):
            await settled()
            self._changed = True
        try:
            self._log.check(said)  # of an update that came with the start, nothing was checked yet
        except (SessionRefused, InvalidInput) as error:
            raise typed(error) from None
        self._messages += 1
        return self._accept(said)

    @send.validator
    def _check_send(self, given: RawValue = NOTHING) -> None:
        said = parsed_message(given)
        if self._given is not None and said.when_busy != "reject":
            try:
                self._log.check(said)
            except (SessionRefused, InvalidInput) as error:
                raise typed(error) from None

    @workflow.update(name=CLOSE, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def close(self) -> JsonObject:
        """Take no further message; the session ends when its invocations have."""
        await workflow.wait_condition(lambda: self._given is not None)
        self._close()
        return {"status": "closed", "open": len(self._log.open) + len(self._log.queue)}

    @workflow.query
    def events(self, start: int = 0) -> JsonObject:
        """Return events of the transcript from index `start` on, as far as this run has them and one answer holds."""
        transcript = Transcript(self._log.id)
        transcript.restore(self._log.given.items)
        for fact in self._facts:
            if len(fact) == 3:
                transcript.start(*fact)
            elif (ref := transcript.tell(*fact)) is not None:
                transcript.apply(ref)
        page = paged(transcript.events, start)
        return {"events": page, "archived": [ref.model_dump() for ref in self._log.given.segments]}

    @workflow.query
    def state(self) -> JsonObject:
        """Return the state with which the next invocation begins."""
        return self._log.state

    @workflow.query
    def invocations(self) -> JsonObject:
        """Return the invocations: all that are open or queued, and the latest of those that are over."""
        shown = [
            {"n": t.n, "id": self._log.invocation_id(t.n), "status": t.status, "message": t.message}
            for t in self._log.turns.values()
        ]
        counts = {"started": self._log.started, "refused": self._log.refused}
        return {**counts, "status": self._log.status, "invocations": shown, "refusals": self._log.refusals}
