"""The log of one invocation: entries in the order in which the workflow applied them, and what they add up to.

The workflow, the activities and every reader outside build the same log from the same history. Whatever a log answers
is a function of its entries; nothing is ever taken back, so a reader may follow it from any index.
"""

from collections.abc import Iterable
from typing import Self, assert_never

from waystation.core import ids, responses
from waystation.core.answer import PendingCall
from waystation.core.budget import NOTHING, Spent
from waystation.core.call import CallState
from waystation.core.entry import (
    AnswerCounted,
    AnswerIgnored,
    AnswerReviewed,
    AnswerSubmitted,
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
    MessageJoined,
    ModelCalled,
    ModelLost,
    ModelReplied,
    NoticeDue,
    Notified,
    Refused,
    ScopesTold,
)
from waystation.core.event import text_of
from waystation.core.message import user_content
from waystation.core.payload import JsonObject
from waystation.core.scope import ScopeDelta, is_scoped, split, writes_scopes
from waystation.core.shape import AgentShape
from waystation.core.spending import Spending
from waystation.core.standing import kept
from waystation.core.state import StateFold
from waystation.core.wire import InvocationInput, InvocationResult
from waystation.core.work import Work

NOBODY = "waystation"
"""Author of what is said of an invocation that no agent could begin."""
NOT_SUBMITTED = AnswerIgnored("InvalidAnswer", "What was reviewed is no answer to a call of this invocation.")
MAX_IGNORED_EVENTS = 100
"""Further ignored answers are counted but get no event of their own, so that a flood stays cheap."""


class Log(Spending):
    """Entries, and their sum: events, state, calls, and what the models have not seen yet."""

    def __init__(self, invocation_id: str, *, timed: bool = True) -> None:
        super().__init__(invocation_id, timed=timed)
        self.entries: list[Entry] = []
        """Those since `entries_before`."""
        self.entries_before = 0
        """How many entries precede them; none, unless the log was restored from a snapshot."""
        self.steps = 0
        """How many model activities were scheduled."""
        self.cancelled = False
        self.ended: Ended | None = None
        self.ignored = 0
        self.scopes_told = -1
        """Number of the last event of which `user:` and `app:` state was told; event 0 is the start."""

    # What the entries add up to.

    @property
    def agent(self) -> str:
        """Name of the agent that was started."""
        return self.input.agent if self.input else NOBODY

    @property
    def root(self) -> str:
        """Name of the root agent in whose tree the agents at work are found."""
        return (self.input.root or self.input.agent) if self.input else ""

    @property
    def busy(self) -> bool:
        """Whether a model or a tool works, or is about to."""
        return any(
            work.in_flight is not None
            or any(call.performing and not call.held for call in work.batch)
            or (work.phase and self.verdict(work).kind != "hold")
            for work in self.active
        )

    @property
    def models_at_work(self) -> dict[int, Work]:
        """For whom models work now, by the numbers of the calls; those of stopped agents left out."""
        return {number: work for number, work in self._asked.items() if not (work.over or self.ended)}

    def waiting(self) -> list[CallState]:
        """Return the calls that wait for a person, in the order in which they were made."""
        return [call for call in self._open_calls() if call.waiting]

    def pending(self) -> list[PendingCall]:
        """Return what waits for a person, as seen from outside."""
        if self.input is None:
            return []
        who = self.input.user_id, self.input.session_id
        return [call.pending(self.invocation_id, *who, self.input.requester) for call in self.waiting()]

    def performing(self) -> list[CallState]:
        """Return the calls that have to be, or are being, carried out."""
        idle = (work for work in self.active if work.in_flight is None)
        return [call for work in idle for call in work.batch if call.performing and not call.held]

    def next_deadline(self) -> float | None:
        """Return when, at the earliest, time changes something about what waits, in seconds since 1970."""
        return min((call.due for call in self._open_calls() if call.due is not None), default=None)

    def result(self, reason: str | None = None) -> InvocationResult:
        """Return what the invocation gives to whoever started it; `reason` when it stopped early."""
        last = self.last_said
        reason = (
            reason or self.wrapped_up or (last.error_message or last.error_code if last and last.error_code else None)
        )
        delta, removed = self._state.since_start()
        return InvocationResult(
            status="stopped" if reason else "completed",
            reason=reason,
            text=text_of(last.content) if last else "",
            content=last.content if last else None,
            state_delta=delta,
            removed_keys=removed,
            usage=self.usage,
            spent=self.spent,
            granted=self.granted if self.granted != NOTHING else None,
            invocation_id=self.invocation_id,
            output=self.output,
            artifact_delta=dict(self.artifact_delta),
            standing=self.standing,
            next_agent=self._next_turn if self._next_turn != self.agent else None,
        )

    def scopes_untold(self) -> int | None:
        """Return the number of the last event with something for `user:` or `app:` state that was not told there.

        None when there is none, and for a called agent, which hands its state to whoever called it.
        """
        written = bool(self._scope_writes) and self._scope_writes[-1] > self.scopes_told
        return self._scope_writes[-1] if written and self.input and self.input.origin is None else None

    def holds_scopes_back(self) -> bool:
        """Whether a call wrote to `user:` or `app:` state, and waits for others to be told in one event with them."""
        calls = (call for work in self.active for call in work.batch if call.outcome and not call.flushed)
        return any(writes_scopes(call.outcome.actions) for call in calls if call.outcome)

    def scope_deltas(self, run: str, after: int, last: int) -> list[tuple[str, ScopeDelta]]:
        """Return what the events after number `after`, up to `last`, wrote to scopes, each with the scope's prefix.

        `run` is the run of the workflow that says so.
        """
        deltas: list[tuple[str, ScopeDelta]] = []
        for number in self._scope_writes:
            if after < number <= last:
                actions = self.events[number - 1].actions if number else None
                written = actions.state_delta if actions else (self.input.state if self.input else {})
                removed = actions.removed_keys if actions else ()
                deltas.extend(split(ids.event(self.invocation_id, number), run, written, removed))
        return deltas

    @property
    def length(self) -> int:
        """How many entries there are."""
        return self.entries_before + len(self.entries)

    def since(self, start: int) -> list[Entry]:
        """Return the entries from index `start` on, which must not lie before those that the log still has."""
        assert start >= self.entries_before
        return self.entries[start - self.entries_before :]

    def refs(self, start: int) -> tuple[str, ...]:
        """Return the references of the entries from index `start` on."""
        return tuple(entry.ref for entry in self.since(start))

    # Growing.

    def advance(self, now: float) -> None:
        """Let every notice and every deadline come that is not after `now`.

        Called before anything else is applied: a late answer is delivered before the timer that already fired.
        """
        while due := [(call.due, call.id) for call in self._open_calls() if call.due is not None and call.due <= now]:
            call = self.calls[min(due)[1]]
            if call.due == call.deadline:
                self.append(ids.deadline_passed(call.id), now, DeadlinePassed(call.id))
            else:
                self.append(ids.notice_due(call.id, call.waits, call.noticed), now, NoticeDue(call.id, call.noticed))

    def record(self, ref: str, now: float, body: Body) -> None:
        """Append an entry, after the deadlines that passed before it."""
        self.advance(now)
        self.append(ref, now, body)

    def extend(self, entries: Iterable[Entry]) -> Self:
        """Append entries of another log of the invocation, or of one that it takes over; return the log."""
        for entry in entries:
            self.append(entry.ref, entry.time, entry.body)
        return self

    def append(self, ref: str, now: float, body: Body) -> None:
        """Append an entry as it stands."""
        self.entries.append(Entry(ref, now, body))
        self._tick(now)
        match body:
            case Began():
                self._begin(now, body.input)
            case Refused():
                self.failure = Failure(kind="error", error_type="InvalidInput", message=body.message)
            case ModelCalled():
                self._call_model(body)
            case ModelReplied():
                if work := self._asked.pop(body.number, None):
                    self._reply(now, body.number, work, body.reply)
            case ModelLost():
                self._lose_model(body)
            case CallReturned():
                call = self.calls.get(body.outcome.function_call_id)
                self._perform(now, call, body.outcome, body.run)
            case ChildReturned():
                self.standing = kept(self.standing, body.result.standing)
                self.usage = self.usage + body.result.usage
                spent = body.result.spent or Spent(total_tokens=body.result.usage.total)
                self._count_child(body.function_call_id, spent, body.result.granted or NOTHING)
                call = self.calls.get(body.function_call_id)
                self._perform(now, call, responses.of_child(call, body.result) if call else None)
            case CallLost():
                self._count_lost(body.function_call_id, body.failure.used)
                call = self.calls.get(body.function_call_id)
                self._perform(now, call, responses.lost(call, body.failure) if call else None, body.run)
            case AnswerCounted():
                if asking := self._asked_for_more(now, body.function_call_id):
                    self._answer_ask(now, asking, body.answer)
                else:
                    self._answer(now, self.calls[body.function_call_id], body.answer)
            case AnswerIgnored():
                self._ignore(now, body)
            case AnswerSubmitted():
                self.submitted[ids.message(ref)] = body.answer
            case AnswerReviewed():
                self._take_review(now, body)
            case NoticeDue():
                self._remind(body)
            case Notified():
                self._note_failures(now, body)
            case MessageJoined():
                self._join(now, body)
            case DeadlinePassed():
                if asking := self._asked_for_more(now, body.function_call_id):
                    self._expire_ask(now, asking)
                else:
                    self._expire(now, self.calls[body.function_call_id])
            case ScopesTold():
                self._tell_scopes(now, body)
            case ForkRefused():
                self.failure = body.failure
            case CancelRequested():
                self.cancelled = True
            case Ended():
                self._end(now, body)
            case _:
                assert_never(body)
        if not self.ended:
            self._tell_who_is_asked()
            self._grow(now)
            self._rest(now)
            if not (self.cancelled or self.failure or self.concluded):
                self._ask_if_due(now)

    def _begin(self, now: float, started: InvocationInput) -> None:
        self.input = started
        self.standing = started.standing
        self._state = StateFold(started.state)
        if any(map(is_scoped, started.state)):
            self._scope_writes.append(0)
        self._emit(now, None, user_content(started.message))
        self._begin_work(AgentShape(name=started.agent), None, None)

    def _call_model(self, called: ModelCalled) -> None:
        self.steps = max(self.steps, called.number)
        work = self.works[called.turn]
        work.phase_in_flight = work.phase or "turn"
        work.in_flight, work.unread, work.wrapping = called.number, False, called.wrap_up
        self._asked[called.number] = work

    def _lose_model(self, lost: ModelLost) -> None:
        work = self._asked.pop(lost.number, None)
        if work and not work.over:
            work.in_flight = work.phase_in_flight = None
            self.failure = lost.failure

    def _ignore(self, now: float, body: AnswerIgnored) -> None:
        self.ignored += 1
        if self.ignored <= MAX_IGNORED_EVENTS:
            facts = {"reason": body.reason, "message": body.message}
            named = {"function_call_id": body.function_call_id, "by": body.by}
            facts.update({key: value for key, value in named.items() if value})
            self._emit(now, None, None, custom_metadata={"ignored_answer": facts})

    def _take_review(self, now: float, body: AnswerReviewed) -> None:
        answer, review = self.submitted.pop(body.ref, None), body.review
        if body.refused or answer is None:
            self._ignore(now, body.refused or NOT_SUBMITTED)
            return
        call = self.calls[ids.requesting_call(answer.function_call_id)]
        if review.nonce:
            call.answer_ids[review.nonce] = None
        self._answer(now, call, review.applied_to(answer), review.who)

    def _remind(self, body: NoticeDue) -> None:
        call = self.calls[body.function_call_id]
        call.noticed = body.number + 1
        if call.policy:
            notice = call.policy.notices()[body.number]
            self._occasion(call, "escalation" if notice.escalates else "reminder", notice)

    def _note_failures(self, now: float, body: Notified) -> None:
        if body.report.failed:
            failed: JsonObject = {"function_call_id": body.function_call_id, "occasion": body.occasion}
            self._emit(now, None, None, custom_metadata={"not_notified": failed | {"channels": body.report.failed}})

    def _tell_scopes(self, now: float, told: ScopesTold) -> None:
        self.scopes_told = max(self.scopes_told, told.last)
        problems: list[JsonObject] = [refused.model_dump(include={"id", "reason"}) for refused in told.refused]
        if told.failure:
            problems.append({"reason": f"Nobody knows whether it was stored: {told.failure.error_type}."})
        if problems:
            self._emit(now, None, None, custom_metadata={"state_not_stored": problems})

    def _join(self, now: float, body: MessageJoined) -> None:
        parts = user_content(body.message)["parts"]
        work = next((w for w in reversed(self.active) if w.shape.kind == "llm" and not w.spoken_for), None)
        if work is None:
            self._emit(now, None, {"role": "user", "parts": parts})
            return
        # After what the agent says or does just now, which was not said in the light of it.
        work.held.append(("user", parts))
        work.unread = True
        self._settle(now, work)

    def _end(self, now: float, ended: Ended) -> None:
        self.ended = ended
        self._close_ask()
        for work in self.active:
            self._seal(now, work)
        if ended.status == "failed" and self.failure:
            said = self.failure.error_type, self.failure.message
        elif ended.status not in ("completed", "failed"):
            said = f"INVOCATION_{ended.status.upper()}", f"The invocation was {ended.status.replace('_', ' ')}."
        else:
            return
        self._emit(now, None, None, author=self.agent, error_code=said[0], error_message=said[1])
