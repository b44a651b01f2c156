"""Rebuild an invocation's log from its history.

The prompt builder, live streams, readers of closed and exported histories, and the debugger all use this projection.
Its log equals the workflow's log. Tests compare the two for every recorded history in the corpus.

A workflow does not apply messages and results in history order: within one workflow task, it receives
signals and updates before results. Every command lists the entries that were applied before it (`Position`), so the
projection has to apply this rule itself only for the entries after the last command.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pydantic import ValidationError

from waystation.core import ids
from waystation.core.approval import parse_answer
from waystation.core.contract import GIVE_UP_SIGNAL, MESSAGE_SIGNAL, InvocationInput, Position
from waystation.core.errors import ForeignHistory, InvalidAnswer, StoreFailed
from waystation.core.log import (
    CANCEL,
    END,
    START,
    AnswerCounted,
    AnswerIgnored,
    AnswerVerified,
    Body,
    CallRef,
    CancelRequested,
    DeadlinePassed,
    DeadlineRef,
    Ended,
    EntryRef,
    Failure,
    GivenUp,
    Log,
    MessageRef,
    ModelCalled,
    ModelCallRef,
    ModelReplyRef,
    ReminderDue,
    ReminderRef,
    SignalClock,
    VerificationRef,
    VerificationRequested,
    decision,
    intake,
    parse_ref,
    without_verdict,
)
from waystation.core.payload import decode
from waystation.core.projection.engine_activities import (
    CHILD_OUTCOME,
    CHILD_RESULT,
    FOUND_OUTCOME,
    kind_of,
    target_entry,
    with_attempt,
)
from waystation.core.projection.facts import (
    Abandoned,
    Arrived,
    CancelAsked,
    Closed,
    Fact,
    Lost,
    NotFound,
    RanLocally,
    Returned,
    Scheduled,
    Signalled,
    Started,
    TaskCompleted,
    TimerFired,
    UpdateAccepted,
)
from waystation.core.projection.snapshot import Carried

Message: TypeAlias = Signalled | UpdateAccepted | NotFound
Source: TypeAlias = Callable[[Log, float], tuple[EntryRef, Body] | None]
"""A function that returns an entry and the reference to it when the entry is to be applied. It returns None if there is
no entry and only deadlines are to be applied."""


@dataclass(slots=True)
class _Task:
    """One workflow task: its time, its input and its commands."""

    time: float
    messages: list[Source]
    results: list[Source]
    updates: list[Source] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    local: dict[EntryRef, int] = field(default_factory=dict)
    """The results of local activities, each with its number."""
    local_time: float = 0.0
    """When the last local activity ended. The workflow applies the results of all of them, and then everything else,
    at this time."""
    closed: Closed | None = None


class Sources:
    """Entries that a history or this process has provided and that have not been applied yet, by reference."""

    def __init__(self) -> None:
        self._bodies: dict[EntryRef, Body] = {}
        self._messages: dict[EntryRef, Message] = {}
        self._counts = {"s": 0, "u": 0}

    def continue_from(self, carried: Carried) -> None:
        """Continue counting signals and updates where the previous run stopped."""
        self._counts = {"s": carried.signals, "u": carried.updates}

    def learn(self, fact: Fact) -> EntryRef | None:
        """Remember the entry that a fact results in. Return a reference to it, or None if there is no such entry."""
        match fact:
            case Started() if not fact.carried():
                return self.put(
                    START, intake.begin_entry(fact.payloads, parent=fact.parent, parent_run=fact.parent_run)
                )
            case Signalled() | UpdateAccepted():
                channel: Literal["s", "u"] = "s" if isinstance(fact, Signalled) else "u"
                self._counts[channel] += 1
                self._messages[message := MessageRef(channel, self._counts[channel])] = fact
                return message
            case NotFound(number):
                self._messages[message := MessageRef("s", number)] = fact
                return message
            case Returned() | Lost():
                ref, body = result_entry(fact)
                return self.put(with_attempt(ref, body), body)
            case RanLocally():
                return self.learn(fact.result) if fact.result else None
            case Abandoned():
                ref, body = result_entry(Lost(fact.ref, Failure(kind="cancelled")))
                return self.put(ref, body)
            case CancelAsked():
                return self.put(CANCEL, CancelRequested())
            case _:
                return None

    def put(self, ref: EntryRef, body: Body) -> EntryRef:
        """Remember an entry until it is applied, and return its reference."""
        self._bodies[ref] = body
        return ref

    def take(self, ref: EntryRef) -> Body | None:
        """Remove and return the entry that a command names, or return None if its source is missing."""
        if body := self._bodies.pop(ref, None):
            return body
        match ref:
            case VerificationRef():
                verified_entry = self._bodies.pop(without_verdict(ref), None)
                refused = AnswerIgnored("ignored", "Verification refused the answer.")
                return replace(verified_entry, refused=refused) if isinstance(verified_entry, AnswerVerified) else None
            case ModelCallRef():
                return ModelCalled(ref.number, ref.turn, ref.wrap_up)
            case DeadlineRef():
                return DeadlinePassed(ref.function_call_id)
            case ReminderRef():
                return ReminderDue(ref.function_call_id, ref.number)
            case MessageRef() if fact := self._messages.pop(without_verdict(ref), None):
                if ref.verdict == "!":
                    return AnswerIgnored("ignored", f"An answer was ignored; {type(fact).__name__}.")
                return _accept_message(fact, submitted=ref.verdict == "?")
            case _:
                return None

    def decide(self, ref: EntryRef, log: Log, now: float) -> tuple[EntryRef, Body]:
        """Return the reference and the entry for a message that no command has named yet."""
        assert isinstance(ref, MessageRef)
        body: Body
        match fact := self._messages.pop(ref):
            case UpdateAccepted():
                body = _accept_message(fact)
                call = log.state.calls.get(body.function_call_id) if isinstance(body, AnswerCounted) else None
                if isinstance(body, AnswerCounted) and call:
                    body = decision.decide_update(call, body.answer)
            case NotFound():
                body = intake.NOT_FOUND
            case Signalled():
                _check_content(fact)
                body = intake.decide_signal(log, fact.name, fact.payloads, now)
        return decision.ref_with_verdict(ref, body), body


def catch_up(log: Log, position: Position, sources: Sources, now: float) -> bool:
    """Append the entries that `position` names and the log lacks, in that order.

    Return False if the log is too short for the position, or if the source of an entry is missing.
    """
    known = log.length - position.at
    if known < 0:
        return False
    for ref in refs_of(position)[known:]:
        body = sources.take(ref)
        if body is None:
            return False
        log.append(ref, now, body)
    return True


class Projection:
    """Builds a log from facts as they arrive, including those after the last command."""

    def __init__(self, invocation_id: str, log: Log | None = None) -> None:
        """`log` contains the entries of earlier runs, if the facts belong to a run that continues those runs."""
        self.log = log or Log(invocation_id)
        self.sources = Sources()
        """Entries that facts have provided and that have not been applied yet."""
        self._applied: set[EntryRef] = set()
        self._arrivals: set[str] = set()
        self._clock = SignalClock()
        self._messages: list[Source] = []
        self._results: list[Source] = []
        self._task: _Task | None = None

    def feed(self, facts: Iterable[Fact]) -> None:
        """Add facts, which must be in history order. Call `flush` after the last one to apply the last workflow task.

        Raises:
            ForeignHistory: The history was not recorded by Waystation, or it is truncated.
        """
        for fact in facts:
            if not isinstance(fact, Scheduled | UpdateAccepted | NotFound | Arrived | Abandoned | RanLocally | Closed):
                self.flush()
            ref = self.sources.learn(fact)
            match fact:
                case Started() if given := fact.carried():
                    self._continue(*given)
                case TaskCompleted():
                    self._start_task(fact.time)
                case Scheduled():
                    self._open_task().scheduled.append(fact)
                case RanLocally():
                    task = self._open_task()
                    task.local_time = max(task.local_time, fact.time)
                    if ref:
                        task.local[ref] = fact.number
                case UpdateAccepted():
                    self._open_task().updates.append(self._message(ref))
                case Signalled():
                    self._messages.append(self._signal(ref))
                case Arrived(mark):
                    self._arrivals.add(mark)
                case NotFound() | Abandoned():
                    pass
                case TimerFired():
                    self._results.append(lambda _, now: self._advance(now))
                case Closed():
                    if self._task is None:  # ended externally: terminated or timed out
                        self._start_task(fact.time)
                    self._open_task().closed = fact
                    self.flush()
                case _:
                    self._results.append(self._entry(ref))
            if isinstance(fact, Started):
                self.log.state.run = fact.first_run

    def _continue(self, started: InvocationInput, carried: Carried) -> None:
        """Continue the log of the previous run, or its snapshot if that run was not read."""
        self.sources.continue_from(carried)
        if not self.log.length or (carried.forked and self.log.length != carried.snapshot.entries):
            self.log = carried.snapshot.restored(self.log.invocation_id, started)
        elif self.log.length != carried.snapshot.entries:
            raise ForeignHistory(
                f"A run of {self.log.invocation_id!r} continues from entry {carried.snapshot.entries}, but the run "
                f"before it ended at entry {self.log.length}. A run may be missing."
            )

    def flush(self) -> None:
        """Apply the last workflow task, which `feed` holds back. Call this at the end of the known history."""
        task, self._task = self._task, None
        if task is None:
            return
        for scheduled in task.scheduled:
            self._follow(scheduled, task)
        self._apply((*task.messages, *task.updates, *task.results), task.time)
        task.time = max(task.time, task.local_time)
        self._apply([self._entry(ref) for ref in sorted(task.local, key=task.local.__getitem__)], task.time)
        if task.closed and task.closed.status != "continued":
            self.log.record(END, task.time, Ended(task.closed.status))

    def _apply(self, sources: Iterable[Source], now: float) -> None:
        for source in sources:
            if made := source(self.log, now):
                self._append(made[0], now, made[1])

    def _start_task(self, time: float) -> None:
        self._task = _Task(time, self._messages, self._results)
        self._messages, self._results = [], []

    def _open_task(self) -> _Task:
        if self._task is None:
            raise ForeignHistory("The history is truncated: it contains a command without the workflow task.")
        return self._task

    def _follow(self, scheduled: Scheduled, task: _Task) -> None:
        """Apply the entries that a command names, and then the model call that it schedules, if any."""
        # Skip entries that were already applied according to the rule in the module docstring. Commands may name them
        # in a different order or not at all: a worker that replays during an update receives the results of earlier,
        # empty workflow tasks after the update, and the update's commands are scheduled in between. On the next replay,
        # and therefore also here, those results precede the update.
        for ref in refs_of(position_of(scheduled)):
            if without_verdict(ref) in self._applied:
                continue
            now = task.time = max(task.time, task.local_time) if ref in task.local else task.time
            time = self._advance_to(ref, now) if isinstance(ref, MessageRef) and ref.channel == "s" else now
            if isinstance(ref, MessageRef) and ref.verdict == "!":
                _, body = self.sources.decide(without_verdict(ref), self.log, time)
            elif (taken := self.sources.take(ref)) is not None:
                body = _with_reason(taken, self.log, now)
            else:
                raise ForeignHistory(
                    f"The history does not contain the source of {str(ref)!r}. It is truncated or damaged, or a newer "
                    "version of Waystation recorded it."
                )
            self._append(ref, now, body)
        if scheduled.model:
            called = _model_call(scheduled)
            ref = ModelCallRef(called.number, called.turn, called.wrap_up)
            if ref not in self._applied:  # otherwise, this is another attempt at a held call
                self._advance(task.time)
                self._append(ref, task.time, called)

    def _advance(self, now: float, until: float | None = None) -> None:
        before = self.log.length
        self.log.advance(now, until)
        self._applied.update(entry.ref for entry in self.log.since(before))

    def _append(self, ref: EntryRef, now: float, body: Body) -> None:
        self._applied.add(without_verdict(ref))
        self.log.append(ref, now, body)

    def _advance_to(self, signal: MessageRef, now: float) -> float:
        return self._clock.advance(self.log, signal.number, now, lambda mark, *_: mark in self._arrivals, self._advance)

    def _signal(self, ref: EntryRef | None) -> Source:
        assert isinstance(ref, MessageRef)
        return lambda log, now: (
            None if ref in self._applied else self.sources.decide(ref, log, self._advance_to(ref, now))
        )

    def _message(self, ref: EntryRef | None) -> Source:
        assert ref is not None

        def source(log: Log, now: float) -> tuple[EntryRef, Body] | None:
            self._advance(now)
            return None if ref in self._applied else self.sources.decide(ref, log, now)

        return source

    def _entry(self, ref: EntryRef | None) -> Source:
        assert ref is not None

        def source(log: Log, now: float) -> tuple[EntryRef, Body] | None:
            self._advance(now)
            body = None if ref in self._applied else self.sources.take(ref)
            if isinstance(body, AnswerVerified):
                body = decision.decide_verified(log, body.ref, body.review, now)
                return with_attempt(ref, body), body
            return (ref, body) if body else None

        return source


def _with_reason(body: Body, log: Log, now: float) -> Body:
    """Return the entry of a refused answer with the reason, which commands do not record. Return others unchanged."""
    if isinstance(body, AnswerVerified) and body.refused:
        verified = decision.decide_verified(log, body.ref, body.review, now)
        return verified if verified.refused else body
    return body


def position_of(scheduled: Scheduled) -> Position:
    """Return the position in a command's input.

    Raises:
        ForeignHistory: Waystation did not issue the command.
    """
    try:
        return Position.model_validate(decode(scheduled.data))
    except (ValidationError, ValueError):
        raise ForeignHistory(f"Waystation did not create the input of activity {scheduled.ref!r}.") from None


def refs_of(position: Position) -> list[EntryRef]:
    """Parse the references in a position.

    Raises:
        ForeignHistory: One of the references is not valid.
    """
    try:
        return list(map(parse_ref, position.new))
    except ValueError as error:
        raise ForeignHistory(f"{error} The history is damaged, or a newer version recorded it.") from None


def result_entry(fact: Returned | Lost) -> tuple[EntryRef, Body]:
    """Return the reference and the entry for the result of an activity or a called agent.

    The reference does not include the attempt that produced the result.

    Raises:
        ForeignHistory: Waystation does not schedule such an activity.
    """
    try:
        ref = parse_ref(fact.ref)
        kind = kind_of(ref)
    except ValueError as error:
        raise ForeignHistory(f"{error} The history is damaged, or a newer version recorded it.") from None
    if isinstance(ref, CallRef) and fact.target:
        return ref, target_entry(ref, fact.failure if isinstance(fact, Lost) else fact.data)
    if isinstance(fact, Lost):
        return ref, kind.to_entry(ref, fact.failure)
    if isinstance(ref, CallRef) and (fact.child or fact.followed):
        kind = CHILD_OUTCOME if fact.followed else CHILD_RESULT
    elif fact.followed:
        kind = FOUND_OUTCOME
    return ref, kind.to_entry(ref, fact.data)


def _model_call(scheduled: Scheduled) -> ModelCalled:
    """Return the entry for the model call that a command schedules."""
    params, ref = decode(scheduled.data), parse_ref(scheduled.ref)
    turn = params.get("turn", 0)
    if not (isinstance(turn, int) and isinstance(ref, ModelReplyRef)):
        raise ForeignHistory(f"Waystation did not create the input of activity {scheduled.ref!r}.")
    return ModelCalled(ref.number, turn, params.get("wrap_up") is not None)


def _check_content(fact: Signalled) -> None:
    if fact.lacking:
        raise StoreFailed("an unknown location", fact.lacking)


def _accept_message(fact: Message, *, submitted: bool = False) -> Body:
    if isinstance(fact, NotFound):
        raise ForeignHistory(f"The history records signal {fact.number} both as accepted and as not found.")
    if isinstance(fact, Signalled):
        _check_content(fact)
    if isinstance(fact, Signalled) and fact.name == GIVE_UP_SIGNAL:
        return GivenUp()
    try:
        if isinstance(fact, Signalled) and fact.name == MESSAGE_SIGNAL:
            return intake.parse_joined_message(fact.payloads)
        answer = parse_answer(fact.payloads[0] if fact.payloads else b"")
    except InvalidAnswer as error:
        raise ForeignHistory(f"An accepted answer in the history cannot be read: {error}") from None
    return (VerificationRequested if submitted else AnswerCounted)(ids.requesting_call(answer.function_call_id), answer)
