"""Forks: the entries of a source invocation, up to some event, become the beginning of a new invocation.

Calls whose results the fork inherits do not run again. Calls that need approval and had not run yet wait for it again:
neither approvals given in the source nor approvals remembered there count in the fork.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from waystation.core import ids
from waystation.core.budget import Budget
from waystation.core.contract import Fork, InvocationInput, ModelReply, SegmentRef, ToolOutcome
from waystation.core.errors import InvalidInput
from waystation.core.log import (
    AnswerCounted,
    AnswerVerified,
    Began,
    CallRef,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    Ended,
    Entry,
    ForkRefused,
    GivenUp,
    Log,
    MessageRef,
    ModelCalled,
    ModelLost,
    ModelReplied,
    OutcomeFound,
    OutcomeRef,
    ScopeFlushRef,
    ScopesFlushed,
    VerificationRequested,
    without_verdict,
)
from waystation.core.payload import JsonObject, Recorded
from waystation.core.projection.snapshot import Snapshot

GIVEN = "given"
"""Marks results that were supplied when the fork was requested. Stored as the attempt in their references."""
SAME = ("agent", "app", "user_id", "session_id", "tenant")
"""Fields that a fork must share with its source, so that no one can read another user's conversation."""


class TakenOver(Recorded):
    """Result of the activity that reads the source of a fork."""

    input: JsonObject
    """The `InvocationInput` that the fork continues with."""
    snapshot: Snapshot
    segments: tuple[SegmentRef, ...] = ()
    tail: tuple[JsonObject, ...] = ()
    """The entries, if they are small. Otherwise they are in `segments`."""
    signals: int = 0
    """Number of the last signal among the entries, or 0 if there is none."""
    updates: int = 0
    search_attributes: bool = False


def log_until(log: Log, event: int) -> Log:
    """Return the log up to and including the entry that emitted event number `event`.

    Raises:
        InvalidInput: The log has no such event.
    """
    earlier = Log(log.invocation_id)
    for entry in log.entries:
        if earlier.state.event_count >= event:
            break
        earlier.append(entry.ref, entry.time, entry.body)
    if earlier.state.event_count < event:
        raise InvalidInput(f"{log.invocation_id!r} has {earlier.state.event_count} events; there is no event {event}.")
    return earlier


def forked_entries(source: Log, fork: Fork, given: InvocationInput, now: float) -> list[Entry]:
    """Return the first entries of a fork that was started with the input `given`.

    The times of the entries are shifted so that the last one becomes `now`. Pending calls thus keep their remaining
    time.

    Raises:
        InvalidInput: The source cannot be forked this way.
    """
    if source.state.input is None:
        raise InvalidInput(f"{source.invocation_id!r} never began; there is nothing to take over.")
    if source.state.input.unknown:
        raise InvalidInput(f"{source.invocation_id!r} only asks operators; fork the invocation that made the call.")
    for name in SAME:
        theirs, wanted = getattr(source.state.input, name), getattr(given, name)
        if theirs != wanted:
            raise InvalidInput(f"The `{name}` of a fork is that of its source; {wanted!r} is not.")
    if given.state:
        raise InvalidInput("A fork has the state of its source; leave `state` out.")
    inherited = log_until(source, fork.event)
    _check_inherited_approvals(inherited)
    source_entries = list(_select_entries(inherited))
    shift = now - source_entries[-1].time
    entries = [replace(entry, time=entry.time + shift) for entry in source_entries]
    started = _input(source.state.input, given)
    entries[0] = replace(entries[0], body=Began(started))
    log = Log("").extend(entries)
    entries += [_result(log, now, function_call_id, response) for function_call_id, response in fork.results.items()]
    # Only the source asks operators about its calls.
    entries += [
        Entry(OutcomeRef(call_id, run), now, OutcomeFound(call_id, run)) for call_id, run in log.state.unknown.items()
    ]
    if (last := log.state.unflushed()) is not None:
        # The source delivers these writes, so the fork must not deliver them again.
        entries.append(Entry(ScopeFlushRef(last), now, ScopesFlushed(last)))
    # `results` is empty because the supplied results are now entries.
    lineage = fork.model_copy(
        update={
            "home": source.state.input.family or fork.invocation_id,
            "entries": len(entries),
            "results": {},
        }
    )
    entries[0] = replace(entries[0], body=Began(started.model_copy(update={"fork": lineage})))
    return entries


def make_fork_log(source: Log, given: InvocationInput, now: float) -> Log:
    """Return the initial log of a fork that was started with the input `given`.

    Raises:
        InvalidInput: The source cannot be forked this way.
    """
    assert given.fork is not None
    return Log("").extend(forked_entries(source, given.fork, given, now))


def _check_inherited_approvals(log: Log) -> None:
    """Check that the fork does not inherit an answer by verified approvers, who answered for the source only.

    This concerns only long-running calls, because the model acts on their answers later. Of the other calls, those that
    have run pass on only their results, and the rest wait for approval again.

    Raises:
        InvalidInput: A long-running call that requires verified approvers was answered, and not rejected.
    """
    for call in log.state.calls.values():
        answered = call.call.kind == "long_running" and call.answer is not None and call.answer.action != "reject"
        if answered and call.policy and call.policy.must_verify and not call.policy.machine:
            raise InvalidInput(
                f"Verified approvers answered call {call.id!r} of {call.name!r} for {log.invocation_id!r} only. Fork "
                "at an event before that answer; the call then waits for them in the fork."
            )


def _input(source: InvocationInput, given: InvocationInput) -> InvocationInput:
    who = "requester", "token", "signed_request", "schedule"
    own = "message", "metadata", *who, "streaming", "text_interval_s", "cut_after"
    budget = source.budget if given.budget == Budget() else given.budget
    return source.model_copy(update={name: getattr(given, name) for name in own} | {"standing": (), "budget": budget})


def _result(log: Log, now: float, function_call_id: str, response: JsonObject) -> Entry:
    about_to_run = {call.id: call for call in log.state.performing()}
    if function_call_id not in about_to_run:
        raise InvalidInput(
            f"Call {function_call_id!r} is not about to run at that event, as a result needs it; "
            f"{', '.join(about_to_run) or 'none'} is."
        )
    if (policy := about_to_run[function_call_id].policy) and policy.must_verify and not policy.machine:
        raise InvalidInput(
            f"Only verified approvers may answer call {function_call_id!r}, so `results` cannot contain it. Omit it; "
            "the call waits for them in the fork."
        )
    outcome, run = (
        ToolOutcome(function_call_id=function_call_id, response=response, mark=GIVEN),
        about_to_run[function_call_id].run,
    )
    return Entry(CallRef(function_call_id, run, GIVEN), now, CallReturned(outcome, run))


def _select_entries(log: Log) -> Iterator[Entry]:
    """Yield the entries that the fork inherits.

    Answers and remembered approvals of a call that has no final result are left out if the call has not returned since.
    Progress updates stay.
    """
    entries = list(_without_end(log))
    # Use the entries without those that end the invocation. The end closes all open calls, which would hide that these
    # calls have no result.
    undecided = set(without_result(Log(log.invocation_id).extend(entries)))
    verified_refs = {entry.body.ref for entry in entries if isinstance(entry.body, AnswerVerified)}
    submitted: set[str] = set()
    # A call that ran and then asked again keeps the answers with which it ran, because its result depends on them.
    returns = _last_returns(entries)
    for index, entry in enumerate(entries):
        match entry.body:
            case ModelReplied(number, reply):
                kept = _without_remembered(reply, undecided - returns.keys()).model_copy(
                    update={"signed_request": None}
                )
                yield replace(entry, body=ModelReplied(number, kept))
            case AnswerCounted(function_call_id, answer):
                if (
                    answer.action == "progress"
                    or function_call_id not in undecided
                    or index < returns.get(function_call_id, -1)
                ):
                    yield replace(
                        entry, body=AnswerCounted(function_call_id, answer.model_copy(update={"remember": False}))
                    )
            case VerificationRequested(function_call_id, answer):
                ref = str(without_verdict(entry.ref))
                if ref in verified_refs and (
                    function_call_id not in undecided or index < returns.get(function_call_id, -1)
                ):
                    submitted.add(ref)
                    yield replace(
                        entry,
                        body=VerificationRequested(function_call_id, answer.model_copy(update={"remember": False})),
                    )
            case AnswerVerified(ref) if ref not in submitted:
                continue
            case ChildReturned(function_call_id, result):
                yield replace(entry, body=ChildReturned(function_call_id, result.model_copy(update={"standing": ()})))
            case OutcomeFound(function_call_id) if function_call_id in undecided:
                yield replace(entry, body=replace(entry.body, answer=None))  # the call starts again only in the source
            case _:
                yield entry


def _last_returns(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the index of each call's last result among the entries."""
    returns: dict[str, int] = {}
    for index, entry in enumerate(entries):
        match entry.body:
            case CallReturned(outcome):
                returns[outcome.function_call_id] = index
            case ChildReturned(function_call_id):
                returns[function_call_id] = index
    return returns


def without_result(log: Log) -> Iterator[str]:
    """Yield the IDs of the calls that are waiting, running or about to run and therefore have no final result."""
    for call in log.state.calls.values():
        # A request for more budget has no tool to run.
        if call.waiting or (call.performing and not ids.is_budget(call.id)):
            yield call.id


def _without_end(log: Log) -> Iterator[Entry]:
    """Yield all entries except those that end or fail the invocation and model calls without a reply.

    The fork retries what failed.
    """
    replied = {entry.body.number for entry in log.entries if isinstance(entry.body, ModelReplied)}
    for entry in log.entries:
        match entry.body:
            case ModelCalled(number) if number not in replied:
                continue
            case CallReturned(outcome) if outcome.fatal:
                continue
            case DeadlinePassed(function_call_id) if _fails_invocation(log, function_call_id):
                continue
            case ModelLost() | CancelRequested() | Ended() | ForkRefused():
                continue
            case GivenUp() if log.state.outcome.failure and log.state.outcome.failure.hold:
                continue
            case _:
                yield entry


def _fails_invocation(log: Log, function_call_id: str) -> bool:
    call = log.state.calls.get(ids.requesting_call(function_call_id))
    return bool(call and call.policy and call.policy.on_expiry == "fail")


def _without_remembered(reply: ModelReply, undecided: set[str]) -> ModelReply:
    """Return the reply without the remembered approvals that approved undecided calls in the source."""
    if not any(call.standing and call.id in undecided for call in reply.calls):
        return reply
    calls = (c.model_copy(update={"standing": None}) if c.id in undecided else c for c in reply.calls)
    return reply.model_copy(update={"calls": tuple(calls)})


def message_counts(entries: Iterable[Entry]) -> tuple[int, int]:
    """Return the numbers of the last signal and the last update among the entries. 0 stands for none."""
    numbers = {"s": 0, "u": 0}
    for entry in entries:
        if isinstance(entry.ref, MessageRef):
            numbers[entry.ref.channel] = max(numbers[entry.ref.channel], entry.ref.number)
    return numbers["s"], numbers["u"]
