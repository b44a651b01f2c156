"""Rebuild an invocation's log from its history.

One projection serves the prompt builder, live streams, readers of closed and exported histories, and the debugger. What
it builds equals what the workflow holds; tests compare the two for every kept history.

A workflow does not apply what arrives in the order of the history: within one workflow task it is given signals and
updates before results. Every command says explicitly which entries were applied before it (`Position`); only for what
came after the last command is that rule applied here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pydantic import ValidationError

from waystation.core import approval, ids, results, signals
from waystation.core.answer import parse_answer
from waystation.core.continued import Carried
from waystation.core.entry import (
    AnswerCounted,
    AnswerIgnored,
    AnswerReviewed,
    AnswerSubmitted,
    Body,
    CancelRequested,
    DeadlinePassed,
    Ended,
    Failure,
    ForkRefused,
    ModelCalled,
    ModelLost,
    NoticeDue,
    ScopesTold,
)
from waystation.core.errors import ForeignHistory, InvalidAnswer, StoreFailed
from waystation.core.facts import (
    CancelAsked,
    Closed,
    Fact,
    Lost,
    NotFound,
    Returned,
    Scheduled,
    Signalled,
    Started,
    TaskCompleted,
    TimerFired,
    UpdateAccepted,
)
from waystation.core.log import Log
from waystation.core.model_call import Position
from waystation.core.payload import decode
from waystation.core.signals import NOT_FOUND, joined
from waystation.core.wire import MESSAGE_SIGNAL, InvocationInput

Source: TypeAlias = Callable[[Log, float], tuple[str, Body] | None]
"""Makes an entry, with its reference, when it is applied by rule; None only lets deadlines pass."""


@dataclass(slots=True)
class _Task:
    """One workflow task: when it ran, what it was given, which commands it issued."""

    time: float
    messages: list[Source]
    results: list[Source]
    updates: list[Source] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    closed: Closed | None = None


class Sources:
    """Entries by reference, as far as a history, or this process, has told."""

    def __init__(self) -> None:
        self._bodies: dict[str, Body] = {}
        self._answers: dict[str, Signalled | UpdateAccepted | NotFound] = {}
        self._signals = 0
        self._updates = 0

    def go_on(self, carried: Carried) -> None:
        """Count on from where an earlier run ended."""
        self._signals, self._updates = carried.signals, carried.updates

    def learn(self, fact: Fact) -> str | None:
        """Remember what `fact` is the source of; return its reference."""
        match fact:
            case Started() if fact.carried():
                return None
            case Started():
                return self.put(ids.START, results.beginning(fact.payloads, child=fact.child))
            case Signalled():
                self._signals += 1
                self._answers[ref := ids.signalled(self._signals)] = fact
                return ref
            case NotFound(ref):
                self._answers[ref] = fact
                return ref
            case UpdateAccepted():
                self._updates += 1
                self._answers[ref := ids.updated(self._updates)] = fact
                return ref
            case Returned() | Lost():
                body = result_of(fact)
                return self.put(results.reference(fact.ref, body), body)
            case CancelAsked():
                return self.put(ids.CANCEL, CancelRequested())
            case _:
                return None

    def put(self, ref: str, body: Body) -> str:
        """Remember an entry."""
        self._bodies[ref] = body
        return ref

    def take(self, ref: str) -> Body | None:
        """Return the entry of a reference that a command names; it is not needed again."""
        if body := self._bodies.pop(ref, None):
            return body
        if ids.is_review(ref) and isinstance(found := self._bodies.pop(ids.message(ref), None), AnswerReviewed):
            return replace(found, refused=AnswerIgnored("ignored", "An answer was refused when it was looked into."))
        if ref.startswith(ids.CALLED):
            return ModelCalled(*ids.called_model(ref))
        if ref.startswith(ids.DEADLINE):
            return DeadlinePassed(ref[len(ids.DEADLINE) :])
        if ref.startswith(ids.NOTICE):
            function_call_id, _, number = ids.due_notice(ref)
            return NoticeDue(function_call_id, number)
        fact = self._answers.pop(ids.message(ref), None)
        if fact is None:
            return None
        if ids.is_ignored(ref):
            return _ignored(fact)
        return _counted(fact, submitted=ids.is_submitted(ref))

    def decide(self, ref: str, log: Log, now: float) -> tuple[str, Body]:
        """Return the entry for an answer of which no command has told yet whether it counted."""
        fact = self._answers.pop(ref)
        if isinstance(fact, UpdateAccepted):
            body: Body = _counted(fact)
            call = log.calls.get(body.function_call_id) if isinstance(body, AnswerCounted) else None
            if isinstance(body, AnswerCounted) and call and approval.needs_review(call, body.answer):
                body = AnswerSubmitted(call.id, body.answer)
        elif isinstance(fact, NotFound):
            body = NOT_FOUND
        else:
            _check_content(fact)
            body = signals.decide_signal(log, fact.name, fact.payloads, now)
        return signals.reference(ref, body), body


def catch_up(log: Log, position: Position, sources: Sources, now: float) -> bool:
    """Append the entries up to `position`, exactly as the workflow said it applied them; False when a source lacks."""
    known = log.length - position.at
    if known < 0:
        return False
    for ref in position.new[known:]:
        body = sources.take(ref)
        if body is None:
            return False
        log.append(ref, now, body)
    return True


class Projection:
    """Builds a log from facts, as they come, also beyond the last command."""

    def __init__(self, invocation_id: str, log: Log | None = None) -> None:
        """`log` holds what earlier runs did, when the facts are those of a run that continues them."""
        self.log = log or Log(invocation_id)
        self._sources = Sources()
        self._applied: set[str] = set()
        self._messages: list[Source] = []
        self._results: list[Source] = []
        self._task: _Task | None = None

    @property
    def sources(self) -> Sources:
        """What is not applied yet."""
        return self._sources

    def feed(self, facts: Iterable[Fact]) -> None:
        """Take further facts, in the order of the history.

        Raises:
            ForeignHistory: They are not Waystation's, or some are missing.
        """
        for fact in facts:
            if not isinstance(fact, Scheduled | UpdateAccepted | NotFound | Closed):
                self.flush()
            ref = self._sources.learn(fact)
            match fact:
                case Started() if given := fact.carried():
                    self._continue(*given)
                case TaskCompleted():
                    self._start_task(fact.time)
                case Scheduled():
                    self._open_task().scheduled.append(fact)
                case UpdateAccepted():
                    self._open_task().updates.append(self._message(ref))
                case Signalled():
                    self._messages.append(self._message(ref))
                case NotFound():
                    pass
                case TimerFired():
                    self._results.append(lambda _log, _now: None)
                case Closed():
                    if self._task is None:  # ended from outside: terminated or timed out
                        self._start_task(fact.time)
                    self._open_task().closed = fact
                    self.flush()
                case _:
                    self._results.append(self._entry(ref))

    def _continue(self, started: InvocationInput, carried: Carried) -> None:
        """Go on with the log of the run before, or, when that was not read, with what is left of it."""
        self._sources.go_on(carried)
        if not self.log.length or (carried.forked and self.log.length != carried.snapshot.entries):
            self.log = carried.snapshot.restored(self.log.invocation_id, started)
        elif self.log.length != carried.snapshot.entries:
            raise ForeignHistory(
                f"A run of {self.log.invocation_id!r} goes on from entry {carried.snapshot.entries}; the one before it "
                f"ended at {self.log.length}."
            )

    def flush(self) -> None:
        """Apply what the last workflow task did. Call it where the known part of the history ends."""
        task, self._task = self._task, None
        if task is None:
            return
        for scheduled in task.scheduled:
            self._follow(scheduled, task.time)
        for source in (*task.messages, *task.updates, *task.results):
            self._advance(task.time)
            if made := source(self.log, task.time):
                self._append(made[0], task.time, made[1])
        if task.closed and task.closed.status != "continued":
            self.log.record(ids.END, task.time, Ended(task.closed.status))

    def _start_task(self, time: float) -> None:
        self._task = _Task(time, self._messages, self._results)
        self._messages, self._results = [], []

    def _open_task(self) -> _Task:
        if self._task is None:
            raise ForeignHistory("The history has a command that no workflow task issued; it is truncated.")
        return self._task

    def _follow(self, scheduled: Scheduled, now: float) -> None:
        """Apply what a command says was applied before it."""
        position = position_of(scheduled)
        # Those applied by rule may stand in another order, or not be named at all. A worker that replays while it takes
        # an update is given results of earlier, empty workflow tasks after the update, and what the update brings about
        # is scheduled in between; on the next replay, and so here, they come before it.
        for ref in position.new:
            if ids.message(ref) in self._applied:
                continue
            if ids.is_ignored(ref) and not ids.is_review(ref):
                _, body = self._sources.decide(ids.message(ref), self.log, now)
            elif (taken := self._sources.take(ref)) is not None:
                body = _worded(taken, self.log, now)
            else:
                raise ForeignHistory(
                    f"The history lacks the source of {ref!r}; it is truncated, damaged or a newer version's."
                )
            self._append(ref, now, body)
        if scheduled.model:
            called = ModelCalled(int(scheduled.ref[1:]), *_asked_for(scheduled))
            self._advance(now)
            self._append(ids.model_called(called.number, called.turn, called.wrap_up), now, called)

    def _advance(self, now: float) -> None:
        before = self.log.length
        self.log.advance(now)
        self._applied.update(entry.ref for entry in self.log.since(before))

    def _append(self, ref: str, now: float, body: Body) -> None:
        self._applied.add(ids.message(ref))
        self.log.append(ref, now, body)

    def _message(self, ref: str | None) -> Source:
        assert ref is not None
        return lambda log, now: None if ref in self._applied else self._sources.decide(ref, log, now)

    def _entry(self, ref: str | None) -> Source:
        assert ref is not None

        def source(log: Log, now: float) -> tuple[str, Body] | None:
            body = None if ref in self._applied else self._sources.take(ref)
            if isinstance(body, AnswerReviewed):
                body = approval.judge(log, body.ref, body.review, now)
                return (ids.ignored(ref) if body.refused else ref), body
            return (ref, body) if body else None

        return source


def _worded(body: Body, log: Log, now: float) -> Body:
    """Return the entry of a refused answer with the reason; a command says only that it was refused."""
    if isinstance(body, AnswerReviewed) and body.refused:
        judged = approval.judge(log, body.ref, body.review, now)
        return judged if judged.refused else body
    return body


def position_of(scheduled: Scheduled) -> Position:
    """Return what a command says was applied before it.

    Raises:
        ForeignHistory: The command is not Waystation's.
    """
    try:
        return Position.model_validate(decode(scheduled.data))
    except (ValidationError, ValueError):
        raise ForeignHistory(f"The input of activity {scheduled.ref!r} is not Waystation's.") from None


def _asked_for(scheduled: Scheduled) -> tuple[int, bool]:
    """Return which agent's model is called, and whether it is told to wrap up."""
    given = decode(scheduled.data)
    turn = given.get("turn", 0)
    if not isinstance(turn, int):
        raise ForeignHistory(f"The input of activity {scheduled.ref!r} is not Waystation's.")
    return turn, given.get("wrap_up") is not None


def result_of(fact: Returned | Lost) -> Body:
    if ids.is_delivery(fact.ref):
        if isinstance(fact, Lost):
            return ScopesTold(ids.delivered(fact.ref), failure=fact.failure)
        return results.scopes_told(fact.ref, fact.data)
    if ids.is_review(fact.ref):
        found = results.review_lost(fact.failure) if isinstance(fact, Lost) else results.review(fact.data)
        return AnswerReviewed(ids.reviewed(fact.ref), found)
    if ids.is_notification(fact.ref):
        if isinstance(fact, Lost):
            return results.notice_lost(fact.ref, fact.failure)
        return results.notified(fact.ref, fact.data)
    if fact.ref == ids.FORK:
        lost = Failure(kind="error", error_type="EngineFault")
        return ForkRefused(fact.failure if isinstance(fact, Lost) else lost)
    is_model = fact.ref.startswith("m")
    match fact:
        case Lost():
            return ModelLost(int(fact.ref[1:]), fact.failure) if is_model else results.lost_call(fact.ref, fact.failure)
        case Returned(followed=True):
            return results.child_outcome(fact.ref, fact.data)
        case Returned(child=True):
            return results.child_result(fact.ref, fact.data)
        case Returned():
            return (
                results.model_reply(int(fact.ref[1:]), fact.data)
                if is_model
                else results.tool_outcome(fact.ref, fact.data)
            )


def _check_content(fact: Signalled) -> None:
    if fact.lacking:
        raise StoreFailed("which large payloads are kept", fact.lacking)


def _counted(fact: Signalled | UpdateAccepted | NotFound, *, submitted: bool = False) -> Body:
    if isinstance(fact, NotFound):
        raise ForeignHistory(f"The history says of {fact.ref!r} both that it counted and that it was not found.")
    if isinstance(fact, Signalled):
        _check_content(fact)
    try:
        if isinstance(fact, Signalled) and fact.name == MESSAGE_SIGNAL:
            return joined(fact.payloads)
        answer = parse_answer(fact.payloads[0] if fact.payloads else b"")
    except InvalidAnswer as error:
        raise ForeignHistory(f"An answer that counted cannot be read: {error}") from None
    kind = AnswerSubmitted if submitted else AnswerCounted
    return kind(ids.requesting_call(answer.function_call_id), answer)


def _ignored(fact: Signalled | UpdateAccepted | NotFound) -> Body:
    return AnswerIgnored("ignored", f"An answer was ignored; {type(fact).__name__}.")
