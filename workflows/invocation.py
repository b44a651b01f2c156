"""The workflow that is one agent invocation.

It keeps a log, asks the core what to do next, and has it done. Handlers only append to the log; the loop reads it.
"""

import asyncio
import functools
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from waystation.core import approval, ids, occasions, results, signals
from waystation.core.call import CallState
from waystation.core.continued import Carried, carried_in
from waystation.core.entry import (
    AnswerCounted,
    AnswerReviewed,
    AnswerSubmitted,
    Body,
    CancelRequested,
    Ended,
    EndStatus,
    ModelCalled,
    ModelReplied,
)
from waystation.core.errors import AnswerRefused
from waystation.core.log import Log
from waystation.core.model_call import Phase, Position
from waystation.core.payload import JsonObject
from waystation.core.step import CallModel, Cancel, Fail, Finish, Perform, Step, Wait, next_step
from waystation.core.wire import ANSWER_UPDATE, WORKFLOW
from waystation.workflows.alarm import Alarm
from waystation.workflows.answers import NOTHING, accepted, beginning, parsed, typed
from waystation.workflows.continuing import PRESSING, Continuing
from waystation.workflows.forking import take_over
from waystation.workflows.pending import Noticeboard
from waystation.workflows.people import begun, notify, review_answer
from waystation.workflows.perform import call_agent, call_model, call_tool, follow_agent, tell_scopes
from waystation.workflows.ports import (
    ResultElsewhere,
    data_of,
    hand_over,
    input_data,
    is_elsewhere,
    now,
    paged,
    raw,
    signal_data,
)
from waystation.workflows.reporting import Reporter

CANCEL_GRACE_S = 30.0
"""How long a cancelled invocation waits for its running tools to say how they ended."""
TURNS_TO_DELIVER = 8
"""Turns of the event loop from an activity's result to its entry, with room to spare."""
UnderWay: TypeAlias = "asyncio.Task[Body | None]"
SCOPES = "scopes"
"""Marks, in histories, that `user:` and `app:` state is told what was written to it."""


# Not Exception: that would include NondeterminismError, which has to stay retryable so that a rollback heals it.
# No author code enters a workflow, so the sandbox would only guard this code, which the tests replay in it.
@workflow.defn(
    name=WORKFLOW, sandboxed=False, failure_exception_types=[RuntimeError, TypeError, ValueError, LookupError]
)
class AgentInvocation:
    """One invocation of an agent. Input, result, signal, update and queries: see the wire contract."""

    # With the input, because a run that continues another one may be sent answers before `run` begins.
    @workflow.init
    def __init__(self, given: RawValue) -> None:
        info = workflow.info()
        carried: Carried | None = None
        self._log = Log(info.workflow_id)
        # What is elsewhere fails in `run`; raised here it would leave tasks behind that nobody ends.
        if info.continued_run_id and not is_elsewhere(given) and (found := carried_in([data_of(given.payload)])):
            started, carried = found
            self._log = carried.snapshot.restored(info.workflow_id, started)
        self._carried = carried
        self._continuing = Continuing(carried)
        self._archiving: asyncio.Task[None] | None = None
        self._task_queue = info.task_queue
        self._noticeboard = Noticeboard(carried)
        self._reporter = Reporter()
        self._told = self._log.length
        """Up to which entry the commands so far have said what was applied."""
        self._signals, self._updates = (carried.signals, carried.updates) if carried else (0, 0)
        self._children: dict[str, str] = {}
        """Called agents at work that outlive a cut: ids of the calls, and of their first runs."""
        self._arrivals, self._arrived = 0, False
        """How much of what a workflow task gives after messages has come."""
        self._under_way: dict[str, UnderWay] = {}
        self._beside: dict[str, UnderWay] = {}
        """What neither an end nor a cancellation stops: state told to its scopes, people told of what waits."""
        self._told_at = -1
        self._left: set[str] = set()
        """What of that was told to stop while the invocation goes on."""
        self._alarm = Alarm(self._let_time_pass)
        self._fault: Exception | None = None
        self._settled = False
        """Whether calls were stopped so that what others wrote to such state is told."""

    @workflow.run
    async def run(self, given: RawValue) -> RawValue:
        """Run the invocation to its end."""
        try:
            data = input_data(given)
            if self._carried:
                hand_over(ids.START, self._carried, len(data))
            else:
                body = beginning(given, data)
                self._record(ids.START, body)
                hand_over(ids.START, body, len(data))
            return await self._loop()
        except (ApplicationError, ResultElsewhere):
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, an invocation fails rather than sticks
            workflow.logger.exception("invocation.faulted")
            fault = f"Waystation failed in its own code: {type(error).__name__}."
            raise ApplicationError(fault, type="EngineFault", non_retryable=True) from None

    async def _loop(self) -> RawValue:
        try:
            if self._log.input and self._log.input.fork and not self._carried:
                self._record(ids.FORK, await take_over(self._log, self._position()))
            while True:
                self._leave_unwanted()
                self._tell_people()
                step = next_step(self._log)
                if self._cut_if_due(step):
                    step = Wait()
                match step:
                    case CallModel(turn, phase, wrap_up):
                        self._call_model(turn, phase, wrap_up)
                    case Perform(calls):
                        self._perform(calls)
                        await self._change()
                    case Wait():
                        if self._log.waiting() and not self._log.busy:
                            self._delivering()
                        self._reporter.waiting(self._log)
                        await self._change()
                    case Finish() | Fail() if await self._settle_scopes() or await begun(self._told_at, self._beside):
                        continue
                    case Finish(reason):
                        await self._leave_children()
                        return await self._finish(reason)
                    case Fail(failure):
                        self._stop()
                        await self._leave_children()
                        self._end("failed")
                        await self._reporter.ended(self._log)
                        used = self._log.used.model_dump(mode="json", exclude_defaults=True)
                        raise ApplicationError(failure.message, used, type=failure.error_type, non_retryable=True)
                    case Cancel():
                        raise asyncio.CancelledError
        except asyncio.CancelledError:
            await self._cancel()
            raise

    def _call_model(self, turn: int, phase: Phase, wrap_up: str | None) -> None:
        number = self._log.steps + 1
        position = self._position()
        called = ModelCalled(number, turn, wrap_up is not None)
        self._record(ids.model_called(number, turn, called.wrap_up), called)
        self._begin(ids.model_replied(number), call_model(self._log, number, turn, phase, wrap_up, position))

    def _perform(self, calls: Sequence[str]) -> None:
        for call_id in calls:
            call = self._log.calls[call_id]
            activity_id = ids.performance(call_id, call.run)
            if activity_id not in self._under_way:
                self._begin(activity_id, self._step(call))

    def _step(self, call: CallState) -> Coroutine[Any, Any, Body]:
        # Only an activity's input says how far the log had grown: taking a position for a child would leave a gap.
        if call.call.kind == "agent" and not call.run:
            if self._carried and (run_id := self._carried.children.get(call.id)):
                self._children[call.id] = run_id
                return follow_agent(self._log, call, run_id, self._position())
            started_as = functools.partial(self._child_started, call)
            return call_agent(self._log, call, started_as, findable=self._noticeboard.registered)
        return call_tool(self._log, call, self._position(), self._task_queue)

    def _leave_unwanted(self) -> None:
        """Stop what works for agents that were stopped."""
        for ref, task in self._under_way.items():
            if ref in self._log.unwanted and ref not in self._left:
                self._left.add(ref)
                task.cancel()

    def _begin(self, ref: str, step: Coroutine[Any, Any, Body], *, beside: bool = False) -> UnderWay:
        tasks = self._beside if beside else self._under_way

        async def record() -> Body | None:
            body: Body | None = None
            with self._guard():
                body = await step
                self._arrivals += 1
                if isinstance(body, ModelReplied) and body.reply.search_attributes:
                    self._noticeboard.registered = True
                self._record(results.reference(ref, body), body)
            self._children.pop(ref, None)
            del tasks[ref]
            return body

        tasks[ref] = asyncio.create_task(record())
        return tasks[ref]

    def _tell_people(self) -> None:
        """Have people told of what waits, or waited, since this was last asked."""
        for occasion in occasions.worth_telling(self._log.occasions):
            self._begin(occasion.id, notify(self._log, occasion, self._position()), beside=True)
            self._told_at = workflow.info().get_current_history_length()
        self._log.occasions.clear()

    def _delivering(self) -> bool:
        """Have `user:` and `app:` state told what was written to it, one delivery at a time; whether one goes on."""
        last = self._log.scopes_untold()
        under_way = any(map(ids.is_delivery, self._beside))
        # Asked only then: it is recorded, and invocations that write no such state shall not pay for it. Those that
        # began before there was any such state keep theirs to themselves.
        if not under_way and last is not None and workflow.patched(SCOPES):
            step = tell_scopes(self._log.scopes_told, last, self._position())
            self._begin(ids.delivery(last), step, beside=True)
            return True
        return under_way

    async def _settle_scopes(self) -> bool:
        """See to it that `user:` and `app:` state is told everything; whether that took any time."""
        waited = False
        # What calls wrote is told with those beside them, and these would not come to an end of their own.
        if self._under_way and not self._settled and self._log.holds_scopes_back() and workflow.patched(SCOPES):
            waited = self._settled = True
            await workflow.wait(self._stop(), timeout=CANCEL_GRACE_S)
        while self._delivering():
            waited = True
            await workflow.wait_condition(lambda: not any(map(ids.is_delivery, self._beside)))
            if self._fault:
                raise self._fault
        return waited

    async def _change(self) -> None:
        """Wait until the log has grown."""
        self._noticeboard.post(self._log)
        self._alarm.arm(self._log.next_deadline())
        seen, timer, arrivals = self._log.length, self._alarm.until, self._arrivals
        self._arrived = False
        await workflow.wait_condition(
            lambda: (
                self._log.length > seen
                or self._alarm.until != timer
                or self._arrivals > arrivals
                or self._fault is not None
            )
        )
        self._arrived = self._arrivals > arrivals
        if self._fault:
            raise self._fault

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Hand an exception to the loop, which fails the invocation; raised elsewhere it would stick or be lost."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # the loop raises it again
            self._fault = error

    def _let_time_pass(self) -> None:
        with self._guard():
            self._log.advance(now())

    # Continuing as new.

    def _cut_if_due(self, step: Step) -> bool:
        """Have the run cut when it has grown long enough; return whether nothing new may be begun before that."""
        if not isinstance(step, CallModel | Perform | Wait) or self._log.input is None:
            return False
        urgency = self._continuing.urgency(self._log, self._signals, self._updates)
        if not urgency or self._archiving or self._beside:
            return False
        if not self._continuing.archived:
            self._archiving = asyncio.create_task(self._archive(self._position(), urgency))
            return False
        # Results come after messages, and only then is everything there that the present workflow task was given.
        if self._arrived and all(ref in self._children and ref not in self._left for ref in self._under_way):
            counts = {"signals": self._signals, "updates": self._updates}
            self._continuing.cut(self._log, self._noticeboard, **counts, children=self._children, urgency=urgency)
            return False
        # A called agent that would not outlive the cut may take for ever.
        waits = any(call.call.kind == "agent" and not call.call.detached for call in self._log.performing())
        return urgency >= PRESSING and not waits

    async def _archive(self, position: Position, urgency: float) -> None:
        with self._guard():
            await self._continuing.archive(position, urgency)
        self._archiving = None
        self._arrivals += 1

    def _child_started(self, call: CallState, run_id: str) -> None:
        if call.call.detached:
            self._children[call.id] = run_id
            self._arrivals += 1

    async def _leave_children(self) -> None:
        """Have called agents end whom the server would not tell that this run is over."""
        if running := self._stop(self._children):
            await workflow.wait(running, timeout=CANCEL_GRACE_S)

    async def _finish(self, reason: str | None) -> RawValue:
        self._end("completed")
        await self._reporter.ended(self._log)
        report = self._reporter.report(self._log, search_attributes=self._noticeboard.registered)
        return raw(self._log.result(reason).model_copy(update={"report": report}).fitted().encode())

    def _stop(self, refs: Collection[str] | None = None) -> list[UnderWay]:
        """Tell what is under way to stop: everything, or what is named."""
        running = [task for ref, task in self._under_way.items() if refs is None or ref in refs]
        for task in running:
            task.cancel()
        return running

    async def _cancel(self) -> None:
        self._record(ids.CANCEL, CancelRequested())
        # A result that arrived in the same workflow task would be lost by cancelling whoever awaits it.
        for _ in range(TURNS_TO_DELIVER):
            await asyncio.sleep(0)
        running = self._stop()
        if running:
            await workflow.wait(running, timeout=CANCEL_GRACE_S)
        await self._settle_scopes()
        self._end("cancelled")
        await self._reporter.ended(self._log)

    def _end(self, status: EndStatus) -> None:
        """Seal what is open, and take it off the board."""
        self._record(ids.END, Ended(status))
        self._noticeboard.post(self._log)

    def _position(self) -> Position:
        start, self._told = self._told, self._log.length
        return Position(at=start, new=self._log.refs(start))

    def _record(self, ref: str, body: Body) -> None:
        self._log.record(ref, now(), body)

    # Messages from outside.

    @workflow.signal(dynamic=True)
    def signalled(self, name: str, values: Sequence[RawValue]) -> None:
        """Take any signal. What is not a good answer is recorded as ignored."""
        with self._guard():
            self._signals += 1
            self._log.advance(now())
            data = signal_data(values, self._signals)
            body = signals.NOT_FOUND if data is None else signals.decide_signal(self._log, name, data, now())
            ref = ids.signalled(self._signals)
            marked = signals.reference(ref, body)
            self._record(marked, body)
            hand_over(marked, body, sum(map(len, data or ())))
            if isinstance(body, AnswerSubmitted):
                self._review(ref)

    @workflow.update(name=ANSWER_UPDATE, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def submit_answer(self, given: RawValue = NOTHING) -> JsonObject:
        """Take an answer, and tell the caller that it counted."""
        answer = accepted(given)
        call = self._log.calls[ids.requesting_call(answer.function_call_id)]
        with self._guard():
            self._updates += 1
            ref = ids.updated(self._updates)
            if not approval.needs_review(call, answer):
                self._record(ref, AnswerCounted(call.id, answer))
                return approval.receipt(call, answer)
            self._record(ids.submitted(ref), AnswerSubmitted(call.id, answer))
        # Shielded, since the answer is looked into whether or not anybody still waits to hear of it.
        judged = await asyncio.shield(self._review(ref))
        if isinstance(judged, AnswerReviewed) and judged.refused:
            raise typed(approval.refusal(judged.refused.reason, judged.refused.message))
        return approval.receipt(call, answer)

    def _review(self, ref: str) -> UnderWay:
        """Have an answer looked into; then it counts, or is recorded as ignored."""
        return self._begin(ids.review(ref), review_answer(self._log, ref, self._position()))

    @submit_answer.validator
    def _check_answer(self, given: RawValue = NOTHING) -> None:
        try:
            approval.accept(self._log, parsed(given), now())
        except AnswerRefused as refused:
            raise typed(refused) from None

    @workflow.query
    def pending(self) -> list[JsonObject]:
        """Return the calls that wait for a person."""
        return [call.model_dump(mode="json") for call in self._log.pending()]

    @workflow.query
    def events(self, start: int = 0) -> list[JsonObject]:
        """Return the events from index `start` on, as many as fit into one answer.

        Those before the run was continued as new it holds no more; the number in the first id says where it begins.
        """
        return paged(self._log.events, start - self._log.events_before)

    @workflow.query
    def state(self) -> JsonObject:
        """Return the state, `temp:` keys included."""
        return self._log.state
