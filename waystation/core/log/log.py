"""The log of one invocation: its entries in the order the workflow applied them, and the resulting state.

The workflow, the activities and every reader build the same log from the same history. The state is a function of the
entries. Entries are only ever appended, so a reader can follow a log from any index.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Self, TypeAlias, assert_never

from waystation.core import ids
from waystation.core.approval import merge_remembered
from waystation.core.budget import NOTHING, Spent
from waystation.core.contract import AgentSpec, InvocationInput, user_content
from waystation.core.log import responses
from waystation.core.log.agent_runs import advance_runs, begin_run
from waystation.core.log.answers import (
    apply_deadline,
    ask_for_budget,
    asked_call,
    close_ask,
    count_answer,
    notify,
    notify_of_waits,
)
from waystation.core.log.budget_use import count_child, count_duration, count_lost, update_clock
from waystation.core.log.call import CallState
from waystation.core.log.entry import (
    AnswerCounted,
    AnswerIgnored,
    AnswerVerified,
    Began,
    Body,
    CallLost,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    Ended,
    Entry,
    Failure,
    ForkRefused,
    GivenUp,
    Held,
    MessageJoined,
    ModelCalled,
    ModelLost,
    ModelReplied,
    Notified,
    OutcomeFound,
    Refused,
    ReminderDue,
    ScopesFlushed,
    VerificationRequested,
)
from waystation.core.log.entry_ref import (
    CallRef,
    DeadlineRef,
    EntryRef,
    ModelReplyRef,
    ReminderRef,
    call_id_of,
    parse_ref,
    without_verdict,
)
from waystation.core.log.function_calls import apply_outcome, close_all, settle
from waystation.core.log.invocation_state import Hold, InvocationState, announce, emit
from waystation.core.log.model_replies import apply_model_call, apply_model_loss, apply_reply
from waystation.core.log.unknown_outcomes import apply_found, open_question
from waystation.core.payload import JsonObject
from waystation.core.scope_state import is_scoped

NOT_SUBMITTED = AnswerIgnored("InvalidAnswer", "The verified answer is not for a call of this invocation.")
Advance: TypeAlias = Callable[[float, float], None]
GAVE_UP = "An operator gave up waiting."
MAY_HAVE_STARTED = "If a worker had started the tool by then, it is unknown whether it took effect."
MAX_IGNORED_EVENTS = 100
"""Maximum number of events that report ignored answers. Additional ignored answers are only counted, so that a flood of
them stays cheap."""


class SignalClock:
    """Determines the time at which each signal of a run counts.

    If no worker was running when a deadline passed, the next workflow task may contain both signals that arrived before
    the deadline and signals that arrived after it. The history then has a patch marker for the first signal of each
    kind.
    """

    def __init__(self) -> None:
        self._held: tuple[str, int] | None = None
        """The wait (call ID and number) whose deadline has passed but not been applied: earlier signals come first."""
        self._passed: tuple[str, int] | None = None
        """The wait whose deadline was applied last."""

    def advance(
        self, log: "Log", number: int, now: float, observe: Callable[[str, float, bool], bool], advance: Advance
    ) -> float:
        """Advance the log to the time at which signal `number` counts, and return that time.

        Args:
            log: The log.
            number: The number of the signal.
            now: The time of the workflow task.
            observe: Takes a patch marker, the deadline, and whether the marker means that the signal is late. Returns
                whether the history has the marker.
            advance: Like `Log.advance`.
        """
        while (call := log.missed(now)) and (wait := (call.id, call.waits)) != self._passed:
            assert call.deadline is not None
            asks_if_late = wait == self._held
            mark = ids.arrival(number, call.id, late=asks_if_late)
            if observe(mark, call.deadline, asks_if_late) is not asks_if_late:
                self._held, before = wait, math.nextafter(call.deadline, 0.0)
                advance(now, before)
                return before
            self._held, self._passed = None, wait
            advance(now, call.deadline)
        advance(now, now)
        return now


class Log:
    """The entries of an invocation and the state that results from them."""

    def __init__(self, invocation_id: str, *, timed: bool = True) -> None:
        """`timed` is false for readers whose entries lack the workflow's timestamps: wall time is then not limited."""
        self.state = InvocationState(invocation_id)
        self.state.budget_use.timed = timed
        self.entries: list[Entry] = []
        """The entries, starting at index `entries_before`."""
        self.entries_before = 0
        """Number of entries before those in `entries`. 0 unless the log was restored from a snapshot."""

    @property
    def invocation_id(self) -> str:
        """Workflow ID of the invocation."""
        return self.state.invocation_id

    @property
    def length(self) -> int:
        """Number of entries, including those before a snapshot."""
        return self.entries_before + len(self.entries)

    def since(self, start: int) -> list[Entry]:
        """Return the entries from index `start` on, which must be at least `entries_before`."""
        assert start >= self.entries_before
        return self.entries[start - self.entries_before :]

    def refs(self, start: int) -> tuple[str, ...]:
        """Return references to the entries from index `start` on."""
        return tuple(str(entry.ref) for entry in self.since(start))

    def missed(self, now: float) -> CallState | None:
        """Return the open call with the earliest deadline that has passed but has not been applied yet, if any."""
        deadlines = [(call.deadline, call.id) for call in self.state.open_calls()]
        missed = [(deadline, id) for deadline, id in deadlines if deadline is not None and deadline <= now]
        return self.state.calls[min(missed)[1]] if missed else None

    def advance(self, now: float, until: float | None = None) -> None:
        """Append entries for all reminders and deadlines up to `until` (by default, up to `now`), and apply them.

        Call this before any other entry is applied, because a workflow task delivers a late answer before a timer that
        fired earlier.
        """
        state, until = self.state, now if until is None else until
        while due := [
            (call.due, call.id)
            for call in state.open_calls()
            if call.due is not None and call.due <= until and not call.held_by
        ]:
            call = state.calls[min(due)[1]]
            if call.due == call.deadline:
                self.append(DeadlineRef(call.id), now, DeadlinePassed(call.id))
            else:
                self.append(ReminderRef(call.id, call.waits, call.noticed), now, ReminderDue(call.id, call.noticed))

    def record(self, ref: EntryRef, now: float, body: Body) -> None:
        """Append an entry, preceded by entries for the reminders and deadlines that are due by `now`."""
        self.advance(now)
        self.append(ref, now, body)

    def extend(self, entries: Iterable[Entry]) -> Self:
        """Append the entries and apply them to the state. Return this log."""
        for entry in entries:
            self.append(entry.ref, entry.time, entry.body)
        return self

    def append(self, ref: EntryRef, now: float, body: Body) -> None:
        """Append an entry as it is, without checking for deadlines, and apply it to the state."""
        self.entries.append(Entry(ref, now, body))
        apply(self.state, ref, now, body)


def apply(state: InvocationState, ref: EntryRef, now: float, body: Body) -> None:
    """Apply one entry to the state."""
    count_duration(state, ref, body)
    if state.holds and isinstance(ref, ModelReplyRef | CallRef):
        body = _end_hold(state, ref, body)
    _reduce(state, ref, now, body)
    outcome = state.outcome
    if not outcome.ended:
        notify_of_waits(state, now)
        advance_runs(state)
    update_clock(state, now)
    if not (outcome.ended or outcome.cancelled or outcome.failure or outcome.concluded):
        ask_for_budget(state, now)


def _reduce(state: InvocationState, ref: EntryRef, now: float, body: Body) -> None:
    match body:
        case Began():
            _begin(state, now, body.input)
        case Refused():
            state.outcome.failure = Failure(kind="error", error_type="InvalidInput", message=body.message)
        case ModelCalled():
            apply_model_call(state, body)
        case ModelReplied():
            apply_reply(state, now, body.number, body.reply)
        case ModelLost():
            apply_model_loss(state, body)
        case CallReturned():
            apply_outcome(state, now, state.calls.get(body.outcome.function_call_id), body.outcome, body.run)
        case ChildReturned():
            _return_child(state, now, body)
        case CallLost():
            _lose_call(state, now, body)
        case AnswerCounted():
            count_answer(state, now, asked_call(state, now, body.function_call_id), body.answer)
        case AnswerIgnored():
            _ignore(state, now, body)
        case VerificationRequested():
            _request_verification(state, now, str(without_verdict(ref)), body)
        case AnswerVerified():
            _apply_verification(state, now, body)
        case ReminderDue():
            _remind(state, body)
        case Notified():
            _note_failures(state, now, body)
        case MessageJoined():
            _join(state, now, body)
        case DeadlinePassed():
            apply_deadline(state, now, asked_call(state, now, body.function_call_id))
        case ScopesFlushed():
            _note_flush(state, now, body)
        case OutcomeFound():
            apply_found(state, now, body)
        case ForkRefused():
            state.outcome.failure = body.failure
        case Held():
            _hold(state, now, body)
        case GivenUp():
            _give_up(state, now)
        case CancelRequested():
            state.outcome.cancelled = True
        case Ended():
            _end(state, now, body)
        case _:
            assert_never(body)


def _begin(state: InvocationState, now: float, started: InvocationInput) -> None:
    state.input = started
    state.approvals.standing = started.standing
    state.approvals.joined_requesters = started.joined_requesters
    state.signed_request = started.signed_request
    state.session.values = dict(started.state)
    if any(map(is_scoped, started.state)):
        state.session.scope_writes.append(0)
    emit(state, now, None, user_content(started.message))
    run = begin_run(state, AgentSpec(name=started.agent), None, None)
    if started.unknown:
        open_question(state, now, run, started.unknown)


def _return_child(state: InvocationState, now: float, body: ChildReturned) -> None:
    result = body.result
    state.approvals.standing = merge_remembered(state.approvals.standing, result.standing)
    state.outcome.usage += result.usage
    spent = result.spent or Spent(total_tokens=result.usage.total)
    count_child(state, body.function_call_id, spent, result.granted or NOTHING)
    call = state.calls.get(body.function_call_id)
    apply_outcome(state, now, call, responses.of_child(call, result) if call else None)


def _lose_call(state: InvocationState, now: float, body: CallLost) -> None:
    count_lost(state, body.function_call_id, body.failure.used)
    call = state.calls.get(body.function_call_id)
    apply_outcome(state, now, call, responses.lost(call, body.failure) if call else None, body.run)


def _hold(state: InvocationState, now: float, body: Held) -> None:
    """Record why work is held. Emit an event only if the hold is new or its reason has changed."""
    known, call = state.holds.get(body.activity_id), state.calls.get(call_id_of(body.activity_id))
    hold = Hold(body.failure, known.since if known else now, call.id if call else None)
    state.holds[body.activity_id] = hold
    if known is None or known.failure.hold != body.failure.hold:
        emit(state, now, None, None, custom_metadata={"held": hold.facts()})
        if call is None:
            state.endpoints = body.failure.endpoints or state.endpoints
        announce(state, now, "held", f"{body.activity_id}.{body.failure.mark}", call, reason=body.failure.hold)


def _end_hold(state: InvocationState, ref: ModelReplyRef | CallRef, body: Body) -> Body:
    """Remove the hold, if any, on work that has a result, and return the result.

    If time ran out before a tool started or a model replied, return a result with the failure of the hold instead.
    """
    hold = state.holds.pop(str(replace(ref, attempt="")), None)
    match body:
        case (
            ModelLost(failure=Failure(kind="schedule_to_close"))
            | CallLost(failure=Failure(kind="schedule_to_close", started=False))
        ) if hold:
            return replace(body, failure=hold.failure)
        case _:
            return body


def _give_up(state: InvocationState, now: float) -> None:
    """Fail the held calls with the reasons why they were held."""
    holds, state.holds = state.holds, {}
    for activity_id, hold in holds.items():
        message = f"{hold.failure.message} {GAVE_UP}"
        match parse_ref(activity_id):
            case ModelReplyRef(number):
                apply_model_loss(state, ModelLost(number, hold.failure.model_copy(update={"message": message})))
            case CallRef(function_call_id, run):
                failure = hold.failure.model_copy(update={"message": f"{message} {MAY_HAVE_STARTED}"})
                _lose_call(state, now, CallLost(function_call_id, failure, run))
        state.runs.unwanted.add(activity_id)


def _ignore(state: InvocationState, now: float, body: AnswerIgnored) -> None:
    state.ignored += 1
    if state.ignored <= MAX_IGNORED_EVENTS:
        named = {"function_call_id": body.function_call_id, "by": body.by}
        facts = {"reason": body.reason, "message": body.message, **{name: id for name, id in named.items() if id}}
        emit(state, now, None, None, custom_metadata={"ignored_answer": facts})


def _request_verification(state: InvocationState, now: float, ref: str, body: VerificationRequested) -> None:
    state.approvals.submitted[ref] = body.answer
    call = state.calls.get(body.function_call_id)
    # If the deadline has passed but has not been applied, the answer arrived before it (see `SignalClock`).
    if call and call.deadline is not None and call.deadline <= now:
        call.held_by[ref] = None


def _apply_verification(state: InvocationState, now: float, body: AnswerVerified) -> None:
    answer, verification = state.approvals.submitted.pop(body.ref, None), body.review
    call = state.calls.get(ids.requesting_call(answer.function_call_id)) if answer else None
    if call:
        call.held_by.pop(body.ref, None)
    if body.refused or answer is None or call is None:
        _ignore(state, now, body.refused or NOT_SUBMITTED)
        return
    count_answer(state, now, call, answer, verification)


def _remind(state: InvocationState, body: ReminderDue) -> None:
    call = state.calls[body.function_call_id]
    call.noticed = body.number + 1
    if call.policy:
        notice = call.policy.notices()[body.number]
        notify(state, call, "escalation" if notice.escalates else "reminder", notice)


def _note_failures(state: InvocationState, now: float, body: Notified) -> None:
    if failed := body.report.failed:
        facts = {"function_call_id": body.function_call_id, "occasion": body.occasion, "channels": failed}
        emit(state, now, None, None, custom_metadata={"not_notified": facts})


def _note_flush(state: InvocationState, now: float, flushed: ScopesFlushed) -> None:
    state.session.scopes_flushed = max(state.session.scopes_flushed, flushed.last)
    problems: list[JsonObject] = [refused.model_dump(include={"id", "reason"}) for refused in flushed.refused]
    if flushed.failure:
        problems.append({"reason": f"It is unknown whether the state was stored: {flushed.failure.error_type}."})
    if problems:
        emit(state, now, None, None, custom_metadata={"state_not_stored": problems})


def _join(state: InvocationState, now: float, body: MessageJoined) -> None:
    if body.requester and body.requester not in state.requesters:
        state.approvals.joined_requesters += (body.requester,)
    parts = user_content(body.message)["parts"]
    active = reversed(state.runs.at_work())
    run = next(
        (active_run for active_run in active if active_run.shape.kind == "llm" and not active_run.spoken_for), None
    )
    if run is None:
        emit(state, now, None, {"role": "user", "parts": parts})
        return
    # Emit the message after the reply or calls in progress, because they started without it.
    run.held.append(("user", parts))
    run.unread = True
    settle(state, now, run)


def _end(state: InvocationState, now: float, ended: Ended) -> None:
    outcome, status = state.outcome, ended.status
    outcome.ended = status
    state.holds = {}
    close_ask(state)
    for run in state.runs.at_work():
        close_all(state, now, run)
    if status == "failed" and outcome.failure:
        error = outcome.failure.error_type, outcome.failure.message
    elif status not in ("completed", "failed"):
        error = f"INVOCATION_{status.upper()}", f"The invocation was {status.replace('_', ' ')}."
    else:
        return
    emit(state, now, None, None, author=state.agent, error_code=error[0], error_message=error[1])
