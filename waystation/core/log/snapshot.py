"""What one run of an invocation hands to the run that continues it.

A history has bounds, an invocation has none: before its history grows too long a run ends and another one, with the
same workflow id, goes on. What the workflow needs is carried as a snapshot. The log before the cut is carried by
reference, in segments that an activity has put into the store; only its last stretch, when small, as it stands.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from waystation.core.activity_io import Call, Position, ToolOutcome
from waystation.core.approval.answer import Answer
from waystation.core.call import CallState
from waystation.core.errors import ForeignHistory
from waystation.core.log import entry as bodies
from waystation.core.log.entry import Body, Entry, Failure
from waystation.core.log.entry_ref import parse_ref
from waystation.core.log.invocation_state import InvocationState
from waystation.core.log.log import Log
from waystation.core.payload import JsonObject, Recorded, decode, encode
from waystation.core.wire import InvocationInput

_KINDS: dict[str, type[Any]] = {
    "began": bodies.Began,
    "refused": bodies.Refused,
    "model_called": bodies.ModelCalled,
    "model_replied": bodies.ModelReplied,
    "model_lost": bodies.ModelLost,
    "call_returned": bodies.CallReturned,
    "child_returned": bodies.ChildReturned,
    "call_lost": bodies.CallLost,
    "answer_counted": bodies.AnswerCounted,
    "answer_ignored": bodies.AnswerIgnored,
    "answer_submitted": bodies.AnswerSubmitted,
    "answer_reviewed": bodies.AnswerReviewed,
    "message_joined": bodies.MessageJoined,
    "deadline_passed": bodies.DeadlinePassed,
    "notice_due": bodies.NoticeDue,
    "notified": bodies.Notified,
    "scopes_told": bodies.ScopesTold,
    "fork_refused": bodies.ForkRefused,
    "cancel_requested": bodies.CancelRequested,
    "ended": bodies.Ended,
}
"""Names under which bodies are recorded; they never change."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ADAPTERS: dict[str, TypeAdapter[Body]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}


class SegmentRef(Recorded):
    """Where a stretch of a log is kept outside history."""

    digest: str
    """Of the bytes; also their address in the store."""
    size: int
    """In bytes."""
    entries: int
    """How many entries it holds."""


def entries_to_json(entries: Iterable[Entry]) -> list[JsonObject]:
    """Return entries as JSON objects."""
    return [
        {
            "ref": str(entry.ref),
            "time": entry.time,
            "kind": (kind := _NAMES[type(entry.body)]),
            "body": _ADAPTERS[kind].dump_python(entry.body, mode="json", exclude_defaults=True),
        }
        for entry in entries
    ]


def entries_from_json(objects: Sequence[JsonObject]) -> list[Entry]:
    """Return the entries in such objects.

    Raises:
        ForeignHistory: They are not entries of a log, or of a newer version's.
    """
    try:
        return [
            Entry(parse_ref(given["ref"]), given["time"], _ADAPTERS[given["kind"]].validate_python(given["body"]))
            for given in objects
        ]
    except (KeyError, TypeError, ValueError):
        raise ForeignHistory("A kept stretch of a log cannot be read; it is damaged or a newer version's.") from None


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Return entries as bytes."""
    return encode(entries_to_json(entries))


def unpack_entries(data: bytes) -> list[Entry]:
    """Return the entries in such bytes.

    Raises:
        ForeignHistory: As for `from_json`.
    """
    try:
        objects = decode(data)
    except ValueError:
        raise ForeignHistory("A kept stretch of a log is not JSON; it is damaged.") from None
    return entries_from_json(objects)


_STATE: TypeAdapter[InvocationState] = TypeAdapter(InvocationState)


class Snapshot(Recorded):
    """The state at a moment at which no activity is in flight, without entries and events."""

    entries: int
    """How many there were."""
    invocation: JsonObject
    """An `InvocationState`."""

    @classmethod
    def of(cls, log: Log) -> "Snapshot":
        """Return the snapshot of a log; no activity may be in flight."""
        state = log.state
        assert not any(run.in_flight for run in state.runs.at_work()), "a model call is in flight"
        pruned = replace(
            state,
            input=None,
            runs=replace(state.runs, by_index={run.index: run for run in state.runs.at_work()}, unwanted=set()),
            calls=_needed_calls(state),
            session=replace(state.session, scope_writes=state.session.scope_writes[-1:]),
            approvals=replace(state.approvals, due=[]),
            events=[],
            events_before=state.event_count,
        )
        dump: JsonObject = _STATE.dump_python(pruned, mode="json", exclude_defaults=True)
        return cls(entries=log.length, invocation=dump)

    def restored(self, invocation_id: str, started: InvocationInput) -> Log:
        """Return a log that continues from here."""
        log = Log(invocation_id)
        log.state = replace(_STATE.validate_python(self.invocation), invocation_id=invocation_id, input=started)
        log.entries_before = self.entries
        return log


def _needed_calls(state: InvocationState) -> dict[str, CallState]:
    """Return the open calls, those of the latest replies, and what is left of those that were ever pending."""
    needed = {call_id for run in state.runs.at_work() for call_id in (*run.batch, *run.open)}
    needed.update(call.id for call in state.open_calls())
    return {
        call.id: _without_content(call) if call.id in needed else _closed(call)
        for call in state.calls.values()
        if call.id in needed or call.ever_waits
    }


def _without_content(call: CallState) -> CallState:
    """Return a call without content that is part of events already and is not needed again."""
    if not call.flushed:
        return call
    asked = call.outcome or ToolOutcome(function_call_id=call.id)
    outcome = ToolOutcome(function_call_id=call.id, approval=asked.approval, declared=asked.declared)
    changed: dict[str, Any] = {"outcome": outcome, "provisional": None}
    if call.closed:
        changed |= {"known_digest": call.digest, "args": {}, "shown": None, "response": None, "answer": _bare(call)}
        changed |= {"asks": None, "answer_ids": {}, "viewed_by": {}}
    return replace(call, **changed)


def _closed(call: CallState) -> CallState:
    """Return as much of a closed call as decides on further answers to it."""
    schema: JsonObject | None = None if call.call.response_schema is None else {}
    policy, declared = call.policy, call.declared
    return CallState(
        call=Call(id=call.id, kind=call.call.kind, approval=policy, declared=declared, response_schema=schema),
        gate="refused",
        asked="confirmation" if call.asked else None,
        closed=True,
        answer=_bare(call),
        expired=call.expired,
        noticed=call.noticed,
        known_digest=call.digest,
    )


def _bare(call: CallState) -> Answer | None:
    """Return who gave which answer, without what it said."""
    if call.answer is None:
        return None
    return Answer(function_call_id=call.id, action=call.answer.action, by=call.answered_by)


MAX_KEPT_MESSAGE = 4_096
"""A message up to this size, in bytes, stands in the input of each run, where people look for it."""

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a digest, as `Blobs.get` does."""


class Carried(Recorded):
    """What a run has from the run that it continues."""

    run_id: str
    """Of that run."""
    snapshot: Snapshot
    signals: int = 0
    """How many had arrived in the invocation."""
    updates: int = 0
    segments: tuple[SegmentRef, ...] = ()
    """All that came before, oldest first, but for the last stretch."""
    tail: tuple[JsonObject, ...] = ()
    """The entries of that stretch."""
    children: dict[str, str] = Field(default_factory=dict)
    """Called agents that are still at work: ids of the calls, and of the children's first runs."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered."""
    posted: tuple[JsonObject, ...] = ()
    """What the memo says is pending."""
    forked: bool = False
    """Whether the entries were another invocation's: the run before has only read them."""

    def input(self, before: InvocationInput) -> bytes:
        """Return the input of the run that continues."""
        update: JsonObject = {"state": {}, "carried": self.model_dump(mode="json", exclude_defaults=True)}
        if len(encode(before.message)) > MAX_KEPT_MESSAGE:
            update["message"] = ""
        return before.model_copy(update=update).encode()


class ArchiveInput(Position):
    """Input of the activity that puts entries into the store."""

    since: int
    """The first entry that is not in a segment yet."""
    inline: int = 0
    """Up to this size, in bytes, they are left to be carried as they stand."""


class Archived(Recorded):
    """What that activity reports."""

    upto: int
    """How many entries there are up to and with the last one archived."""
    segment: SegmentRef | None = None
    """None: they are few enough to be carried as they stand."""


class ChildInput(Position):
    """Input of the activity that asks what became of a called agent which an earlier run started."""

    workflow_id: str
    run_id: str
    """Of the child's first run."""


class ChildOutcome(Recorded):
    """What became of it."""

    result: JsonObject | None = None
    """An `InvocationResult`."""
    failure: Failure | None = None


def carried_in(payloads: Sequence[bytes]) -> tuple[InvocationInput, Carried] | None:
    """Return what the input of a run carries, and the input without it; None when the run begins the invocation.

    Only for a run that the server says continues another: anybody may send such a field.

    Raises:
        ForeignHistory: It cannot be read.
    """
    try:
        given = InvocationInput.model_validate(decode(payloads[0]))
        if given.carried is None:
            return None
        return given.model_copy(update={"carried": None}), Carried.model_validate(given.carried)
    except (IndexError, ValidationError, ValueError):
        raise ForeignHistory("What a run carries over cannot be read; it is damaged or a newer version's.") from None


async def extend_log(log: Log, carried: Carried, fetch: Fetch) -> None:
    """Append to a log of earlier entries those that it lacks up to the cut. Segments that are known are not read.

    Raises:
        ForeignHistory: The pieces do not fit together, or the log is further on than the cut.
        StoreFailed: A segment is not to be had.
    """
    at, end = 0, carried.snapshot.entries
    if log.length > end:
        raise ForeignHistory(f"The log of {log.invocation_id!r} has more entries than were carried over.")
    for ref in carried.segments:
        if at + ref.entries > log.length:
            _append(log, unpack_entries(await fetch(ref.digest)), at, ref.entries)
        at += ref.entries
    _append(log, entries_from_json(carried.tail), at, end - at)


def _append(log: Log, entries: Sequence[Entry], at: int, count: int) -> None:
    if len(entries) != count:
        raise ForeignHistory(f"A kept stretch of {log.invocation_id!r} has {len(entries)} entries, not {count}.")
    log.extend(entries[max(log.length - at, 0) :])
