"""The state that a run of an invocation passes to the next run.

The length of a history is limited, but the length of an invocation is not. Before its history grows too long, a run
continues as new under the same workflow ID. It passes its state to the next run as a snapshot, and its log as
references to segments in the store. Only the last entries are passed inline, and only if they are small.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from waystation.core.approval import Answer
from waystation.core.contract import Call, InvocationInput, Position, SegmentRef, ToolOutcome
from waystation.core.errors import ForeignHistory
from waystation.core.log import (
    CallRef,
    CallState,
    Entry,
    EntryRef,
    Failure,
    InvocationState,
    Log,
    ModelCallRef,
    ModelReplyRef,
    parse_ref,
    without_digest,
)
from waystation.core.log import entry as bodies
from waystation.core.payload import JsonObject, Recorded, decode, encode

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
    "answer_submitted": bodies.VerificationRequested,
    "answer_reviewed": bodies.AnswerVerified,
    "message_joined": bodies.MessageJoined,
    "deadline_passed": bodies.DeadlinePassed,
    "notice_due": bodies.ReminderDue,
    "notified": bodies.Notified,
    "scopes_told": bodies.ScopesFlushed,
    "outcome_found": bodies.OutcomeFound,
    "fork_refused": bodies.ForkRefused,
    "held": bodies.Held,
    "given_up": bodies.GivenUp,
    "cancel_requested": bodies.CancelRequested,
    "ended": bodies.Ended,
}
"""Types of entries by the names under which they are recorded. These names never change."""
_NAMES = {kind: name for name, kind in _KINDS.items()}


# Adapters are created on first use: each takes about a millisecond, and a worker that starts needs none.
@cache
def _body_adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


@cache
def _state_adapter() -> TypeAdapter[InvocationState]:
    return TypeAdapter(InvocationState)


_USUAL: dict[type[Any], str] = {ModelCallRef: "model_called", ModelReplyRef: "model_replied", CallRef: "call_returned"}
"""The kinds of entries that are recorded without their kind, by the type of the reference."""
_SHARED = ("function_call_id", "number", "turn", "wrap_up", "run", "last", "occasion", "activity_id")
"""Fields of entries that have the same value as the reference's attribute of that name, and are not recorded."""


def entries_to_json(entries: Iterable[Entry]) -> list[JsonObject]:
    """Return entries as JSON objects, without what follows from the reference or, for the time, the previous entry."""
    objects: list[JsonObject] = []
    time: float | None = None
    for entry in entries:
        kind, ref = _NAMES[type(entry.body)], str(without_digest(entry.ref))
        body = _body_adapter(kind).dump_python(entry.body, mode="json", exclude_defaults=True)
        for name in _shared(entry.ref, type(entry.body)):
            value = body.pop(name, getattr(entry.body, name))
            if value != getattr(entry.ref, name):
                body[name] = value
        recorded: JsonObject = {"ref": ref}
        if entry.time != time:
            recorded["time"] = time = entry.time
        if kind != _USUAL.get(type(entry.ref)):
            recorded["kind"] = kind
        objects.append(recorded | ({"body": body} if body else {}))
    return objects


def _shared(ref: EntryRef, kind: type[Any]) -> list[str]:
    return [name for name in _SHARED if hasattr(ref, name) and name in kind.__dataclass_fields__]


def entries_from_json(objects: Sequence[JsonObject]) -> list[Entry]:
    """Parse entries from JSON objects.

    Raises:
        ForeignHistory: The objects are damaged or were recorded by a newer version.
    """
    entries: list[Entry] = []
    try:
        for recorded in objects:
            ref = parse_ref(recorded["ref"])
            kind = recorded.get("kind") or _USUAL[type(ref)]
            body = {name: getattr(ref, name) for name in _shared(ref, _KINDS[kind])} | recorded.get("body", {})
            time = recorded["time"] if "time" in recorded else entries[-1].time
            entries.append(Entry(ref, time, _body_adapter(kind).validate_python(body)))
        return entries
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ForeignHistory(
            "A stored segment of a log cannot be read. It is damaged, or a newer version of Waystation recorded it."
        ) from None


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Return entries as JSON bytes."""
    return encode(entries_to_json(entries))


def unpack_entries(data: bytes) -> list[Entry]:
    """Parse entries from JSON bytes.

    Raises:
        ForeignHistory: The data is damaged or was recorded by a newer version.
    """
    try:
        objects = decode(data)
    except ValueError:
        raise ForeignHistory("A stored segment of a log is damaged: it is not valid JSON.") from None
    return entries_from_json(objects)


class Snapshot(Recorded):
    """The state of an invocation that has no activities in flight. Entries and events are not included."""

    entries: int
    """Length of the log."""
    invocation: JsonObject
    """The dump of an `InvocationState`, reduced to what the next run needs."""

    @classmethod
    def of(cls, log: Log) -> "Snapshot":
        """Return a snapshot of a log. No activity may be in flight."""
        state = log.state
        assert not any(run.in_flight for run in state.runs.at_work()), "a model call is in flight"
        pruned = replace(
            state,
            run=None,
            input=None,
            stores=None,
            runs=replace(state.runs, by_index={run.index: run for run in state.runs.at_work()}, unwanted=set()),
            calls=_needed_calls(state),
            session=replace(state.session, scope_writes=state.session.scope_writes[-1:]),
            approvals=replace(state.approvals, due=[]),
            holds={},
            events=[],
            events_before=state.event_count,
        )
        dump: JsonObject = _state_adapter().dump_python(pruned, mode="json", exclude_defaults=True)
        return cls(entries=log.length, invocation=dump)

    def restored(self, invocation_id: str, started: InvocationInput) -> Log:
        """Return a log that continues from this snapshot."""
        log = Log(invocation_id)
        state = _state_adapter().validate_python(self.invocation)
        log.state = replace(state, invocation_id=invocation_id, input=started)
        log.entries_before = self.entries
        return log


def _needed_calls(state: InvocationState) -> dict[str, CallState]:
    """Return the calls to carry over: open calls, calls of the latest replies, calls that were ever pending, and calls
    whose outcome is unknown.

    Closed calls that are included only because they were once pending are reduced.
    """
    needed = {function_call_id for run in state.runs.at_work() for function_call_id in (*run.batch, *run.open)}
    needed.update(call.id for call in state.open_calls())
    unknown = state.unknown  # an operator may start these calls once more
    return {
        call.id: call if call.id in unknown else _strip_content(call) if call.id in needed else _reduce_closed(call)
        for call in state.calls.values()
        if call.id in needed or call.ever_waits or call.id in unknown
    }


def _strip_content(call: CallState) -> CallState:
    """Return a call without the content that its events contain. Before its outcome is emitted, it is unchanged."""
    if not call.flushed:
        return call
    outcome_before = call.outcome or ToolOutcome(function_call_id=call.id)
    kept = {name: getattr(outcome_before, name) for name in ("approval", "declared", "tool_origin")}
    outcome = ToolOutcome(function_call_id=call.id, **kept)
    changed: dict[str, Any] = {"outcome": outcome, "provisional": None}
    if call.closed:
        changed |= {
            "known_digest": call.digest,
            "args": {},
            "shown": None,
            "response": None,
            "answer": _strip_answer(call),
        }
        changed |= {"asks": None, "answer_ids": {}, "viewed_by": {}}
        changed |= {"requested": None, "edited_by": {}, "comments": [], "fields": {}}
    return replace(call, **changed)


def _reduce_closed(call: CallState) -> CallState:
    """Return a reduced form of a closed call. It contains what is needed to decide on later answers."""
    schema: JsonObject | None = None if call.call.response_schema is None else {}
    policy, declared = call.policy, call.declared
    return CallState(
        call=Call(id=call.id, kind=call.call.kind, approval=policy, declared=declared, response_schema=schema),
        gate="refused",
        asked="confirmation" if call.asked else None,
        closed=True,
        answer=_strip_answer(call),
        expired=call.expired,
        noticed=call.noticed,
        revoked=call.revoked,
        receipts=call.receipts,
        known_digest=call.digest,
    )


def _strip_answer(call: CallState) -> Answer | None:
    """Return the action and the author of the call's answer, without its content, or None if there is no answer."""
    if call.answer is None:
        return None
    return Answer(function_call_id=call.id, action=call.answer.action, by=call.answered_by)


MAX_KEPT_MESSAGE = 4_096
"""Maximum size, in bytes, of a message that is repeated in the input of every run, because people look for it there.
Larger messages are replaced with an empty one."""

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the stored bytes for a digest, like `Blobs.get`."""


class Carried(Recorded):
    """The state that a run receives from the previous run."""

    run_id: str
    """ID of the previous run."""
    snapshot: Snapshot
    signals: int = 0
    """Number of signals that the invocation has received so far, in all runs."""
    updates: int = 0
    segments: tuple[SegmentRef, ...] = ()
    """Stored segments of the log, oldest first."""
    tail: tuple[JsonObject, ...] = ()
    """The entries that follow the segments."""
    children: dict[str, str] = Field(default_factory=dict)
    """Called agents that are still running. Maps the function call ID to the ID of the child's first run."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered."""
    posted: tuple[JsonObject, ...] = ()
    """The pending calls that the memo lists."""
    forked: bool = False
    """Whether the entries come from the source of a fork. In that case, the previous run only read that source."""

    def input(self, before: InvocationInput) -> bytes:
        """Return the input of the next run."""
        update: JsonObject = {"state": {}, "carried": self.model_dump(mode="json", exclude_defaults=True)}
        if len(encode(before.message)) > MAX_KEPT_MESSAGE:
            update["message"] = ""
        return before.model_copy(update=update).encode()


class ArchiveInput(Position):
    """Input of the activity that stores entries."""

    since: int
    """Index of the first entry that is not in a segment yet."""
    inline: int = 0
    """If the entries do not exceed this size in bytes, they are passed inline instead of being stored."""


class Archived(Recorded):
    """Result of the activity that stores entries."""

    upto: int
    """Length of the log up to and including the last archived entry."""
    segment: SegmentRef | None = None
    """The stored entries, or None if they are small enough to be passed inline."""


class ChildInput(Position):
    """Input of the activity that polls a called agent started by an earlier run."""

    workflow_id: str
    run_id: str
    """ID of the child's first run."""


class ChildOutcome(Recorded):
    """The result or the failure of a called agent."""

    result: JsonObject | None = None
    """An `InvocationResult`."""
    failure: Failure | None = None


def parse_carried(payloads: Sequence[bytes]) -> tuple[InvocationInput, Carried] | None:
    """Return the input of a run and the state that it carries over, or None if the run begins the invocation.

    Call this only if the server reports that the run continues another run, because any client could send a carried
    state.

    Raises:
        ForeignHistory: The carried state cannot be read.
    """
    try:
        started = InvocationInput.model_validate(decode(payloads[0]))
        if started.carried is None:
            return None
        return started.model_copy(update={"carried": None}), Carried.model_validate(started.carried)
    except (IndexError, ValidationError, ValueError):
        raise ForeignHistory(
            "The carried state of a run cannot be read. It is damaged, or a newer version of Waystation recorded it."
        ) from None


async def extend_log(log: Log, carried: Carried, fetch: Fetch) -> None:
    """Append the entries that the log lacks up to the carried snapshot. Only the segments needed for this are fetched.

    Raises:
        ForeignHistory: The segments do not fit together, or the log is longer than the snapshot expects.
        StoreFailed: A segment is not available.
    """
    at, end = 0, carried.snapshot.entries
    if log.length > end:
        raise ForeignHistory(f"The log of {log.invocation_id!r} has more entries than the carried snapshot.")
    for ref in carried.segments:
        if at + ref.entries > log.length:
            _append(log, unpack_entries(await fetch(ref.digest)), at, ref.entries)
        at += ref.entries
    _append(log, entries_from_json(carried.tail), at, end - at)


def _append(log: Log, entries: Sequence[Entry], at: int, count: int) -> None:
    if len(entries) != count:
        raise ForeignHistory(f"A segment of the log of {log.invocation_id!r} has {len(entries)} entries, not {count}.")
    log.extend(entries[max(log.length - at, 0) :])
