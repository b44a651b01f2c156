"""A log without its past: all that the next run of an invocation needs to decide as if nothing had been left behind.

What lies in the past stays readable elsewhere (`continued`). A log that is restored from its snapshot and then given
further entries takes the same steps, shows the same calls as pending and gives the same result as one that has all of
its entries; a property test compares the two at random places.
"""

from dataclasses import replace
from typing import Any

from pydantic import Field, TypeAdapter

from waystation.core.answer import Action, Answer
from waystation.core.budget import NO_USAGE, NOTHING, NOTHING_SPENT, Budget, Grant, Spent, Usage
from waystation.core.call import CallState
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.model_call import Call, CallKind, Said
from waystation.core.payload import JsonObject, Recorded
from waystation.core.policy import ApprovalPolicy, StandingApproval
from waystation.core.shape import AgentShape
from waystation.core.spending import Share
from waystation.core.state import StateFold
from waystation.core.tool_call import ToolOutcome
from waystation.core.wire import InvocationInput
from waystation.core.work import Work

_CALL: TypeAdapter[CallState] = TypeAdapter(CallState)
_PLAIN = (
    "steps",
    "ignored",
    "usage",
    "granted",
    "asks",
    "wrapped_up",
    "scopes_told",
    "spoken_for",
    "output",
    "artifact_delta",
    "last_said",
    "standing",
    "notify",
)
"""What of a log is kept as it stands."""
_PRIVATE = {
    "llm_agents": "_llm_agents",
    "next_turn": "_next_turn",
    "own_spent": "_spent",
    "denied": "_denied",
    "turned_away": "_turned_away",
    "working_s": "_working_s",
    "works_since": "_works_since",
}


class KeptWork(Recorded):
    """One agent at work; other works and calls are named."""

    index: int
    shape: AgentShape
    parent: int | None = None
    branch: str | None = None
    entered_at: int = 0
    entered: bool = False
    started: int = 0
    rounds: int = 0
    begun_before_round: int = 0
    escalated: bool = False
    finished: bool = False
    spoken_for: bool = False
    left: bool = False
    calls_made: int = 0
    batch: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    held: tuple[tuple[str, tuple[JsonObject, ...]], ...] = ()
    closing: Said | None = None
    wrapped: bool = False
    unread: bool = False


_WORK = tuple(name for name in KeptWork.model_fields if name not in ("parent", "batch", "open", "held"))


class Settled(Recorded):
    """A call that people were asked about, and that is closed: enough to tell whoever answers it once more."""

    id: str
    kind: CallKind = "function"
    asked: bool = False
    digest: str
    action: Action | None = None
    by: str | None = None
    expired: bool = False
    approval: ApprovalPolicy | None = None
    """With the following three: what decides on whatever is sent to it once more."""
    declared: str | None = None
    noticed: int = 0
    has_response_schema: bool = False

    @classmethod
    def of(cls, call: CallState) -> "Settled":
        """Return what is kept of a call."""
        return cls(
            id=call.id,
            kind=call.call.kind,
            asked=call.asked is not None,
            digest=call.digest,
            action=call.answer.action if call.answer else None,
            by=call.answered_by,
            expired=call.expired,
            approval=call.policy,
            declared=call.declared,
            noticed=call.noticed,
            has_response_schema=call.call.response_schema is not None,
        )

    def restored(self) -> CallState:
        """Return the call, as far as it is kept."""
        return CallState(
            call=Call(
                id=self.id,
                kind=self.kind,
                approval=self.approval,
                declared=self.declared,
                response_schema={} if self.has_response_schema else None,
            ),
            name="",
            args={},
            agent="",
            reply=0,
            turn=0,
            gate="none",
            asked="confirmation" if self.asked else None,
            outcome=ToolOutcome(function_call_id=self.id),
            flushed=True,
            responded=True,
            closed=True,
            answer=_answer(self.id, self.action, self.by),
            expired=self.expired,
            noticed=self.noticed,
            known_digest=self.digest,
        )


class Snapshot(Recorded):
    """A log at a moment at which no activity works for it, without its entries and events."""

    entries: int
    """How many there were."""
    events: int
    steps: int = 0
    ignored: int = 0
    usage: Usage = NO_USAGE
    granted: Grant = NOTHING
    asks: int = 0
    wrapped_up: str | None = None
    own_spent: Spent = NOTHING_SPENT
    shares: dict[str, tuple[Budget, float]] = Field(default_factory=dict)
    """By function call: what a called agent may use, and what the caller had worked when it was called."""
    ask: str | None = None
    """The question for more that waits for an answer."""
    denied: bool = False
    turned_away: bool = False
    working_s: float = 0.0
    works_since: float | None = None
    scopes_told: int = -1
    scope_write: int | None = None
    """Number of the last event that wrote to `user:` or `app:` state."""
    spoken_for: int = 0
    output: JsonObject | None = None
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    last_said: Event | None = None
    standing: tuple[StandingApproval, ...] = ()
    notify: tuple[str, ...] = ()
    state: JsonObject = Field(default_factory=dict)
    changed: tuple[str, ...] = ()
    """Keys of the state that were set or removed since the start."""
    llm_agents: int = 0
    next_turn: str | None = None
    begun: int = 0
    """How many works ever began."""
    works: tuple[KeptWork, ...] = ()
    """Those that are not over."""
    calls: tuple[JsonObject, ...] = ()
    """Calls that are open, or belong to the latest reply of an agent at work."""
    settled: tuple[Settled, ...] = ()

    @classmethod
    def of(cls, log: Log) -> "Snapshot":
        """Return the snapshot of a log; no activity may be in flight."""
        assert not any(work.in_flight for work in log.active), "a model call is in flight"
        needed = {call.id for work in log.active for call in (*work.batch, *work.open.values())}
        ask = log._ask if log._ask and log._ask.waiting else None
        if ask:
            needed.add(ask.id)
        return cls(
            entries=log.length,
            events=log.event_count,
            **{name: getattr(log, name) for name in _PLAIN},
            **{name: getattr(log, attribute) for name, attribute in _PRIVATE.items()},
            state=log.state,
            changed=tuple(log.changed_keys),
            shares={call_id: (share.budget, share.working_s) for call_id, share in log._shares.items()},
            ask=ask.id if ask else None,
            scope_write=log._scope_writes[-1] if log._scope_writes else None,
            begun=len(log.works),
            works=tuple(map(_kept, log.active)),
            calls=tuple(_dumped(call) for call in log.calls.values() if call.id in needed),
            settled=tuple(Settled.of(call) for call in log.calls.values() if call.id not in needed and call.ever_waits),
        )

    def restored(self, invocation_id: str, started: InvocationInput) -> Log:
        """Return a log that goes on from here."""
        log = Log(invocation_id)
        log.input = started
        log.entries_before, log.events_before = self.entries, self.events
        for name in _PLAIN:
            setattr(log, name, getattr(self, name))
        for name, attribute in _PRIVATE.items():
            setattr(log, attribute, getattr(self, name))
        log.artifact_delta = dict(self.artifact_delta)
        log._state = StateFold(self.state, self.changed)
        settled = [each.restored() for each in self.settled]
        log.calls = {call.id: call for call in (*settled, *map(_CALL.validate_python, self.calls))}
        log._shares = {call_id: Share(*share) for call_id, share in self.shares.items()}
        log._ask = log.calls[self.ask] if self.ask else None
        log._scope_writes = [] if self.scope_write is None else [self.scope_write]
        log.works = [_OVER] * self.begun
        for kept in self.works:
            log.works[kept.index] = work = _restored(kept, log)
            log.active.append(work)
            if work.parent:
                work.parent.children.append(work)
        return log


_OVER = Work(index=-1, shape=AgentShape(name=""), parent=None, branch=None, entered_at=0, over=True)
"""In place of works that are over: nothing is asked of them but that."""


def _kept(work: Work) -> KeptWork:
    return KeptWork(
        parent=work.parent.index if work.parent else None,
        batch=tuple(call.id for call in work.batch),
        open=tuple(work.open),
        held=tuple((author, tuple(parts)) for author, parts in work.held),
        **{name: getattr(work, name) for name in _WORK},
    )


def _restored(kept: KeptWork, log: Log) -> Work:
    parent = log.works[kept.parent] if kept.parent is not None else None
    work = Work(kept.index, kept.shape, parent, kept.branch, kept.entered_at)
    for name in _WORK:
        setattr(work, name, getattr(kept, name))
    work.batch = [log.calls[call_id] for call_id in kept.batch]
    work.open = {call_id: log.calls[call_id] for call_id in kept.open}
    work.held = [(author, list(parts)) for author, parts in kept.held]
    return work


def _dumped(call: CallState) -> JsonObject:
    dumped: JsonObject = _CALL.dump_python(_lean(call), mode="json", exclude_defaults=True)
    return dumped


def _lean(call: CallState) -> CallState:
    """Return a call without content that is part of events already and is not asked for again."""
    if not call.flushed:
        return call
    asked = call.outcome or ToolOutcome(function_call_id=call.id)
    outcome = ToolOutcome(function_call_id=call.id, approval=asked.approval, declared=asked.declared)
    changed: dict[str, Any] = {"outcome": outcome, "provisional": None}
    if call.closed:
        answer = _answer(call.id, call.answer.action, call.answer.by) if call.answer else None
        changed |= {"known_digest": call.digest, "args": {}, "shown": None, "response": None, "answer": answer}
        changed |= {"asks": None, "answer_ids": {}, "viewed_by": {}}
    return replace(call, **changed)


def _answer(call_id: str, action: Action | None, by: str | None) -> Answer | None:
    return Answer(function_call_id=call_id, action=action, by=by) if action else None
