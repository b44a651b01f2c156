"""Accounts of invocations: what was asked, answered and carried out, in the order in which it happened.

They are derived from logs' entries, so from history alone: a live invocation, a closed one and an exported file give
the same account, and that of a running invocation only grows.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.converter import DataConverter

from waystation.audit.sheet import Fault, Sheet, Signer, sheet_of
from waystation.core import (
    SESSION_WORKFLOW,
    Answer,
    AnswerCounted,
    AnswerIgnored,
    AnswerReviewed,
    AnswerSubmitted,
    Began,
    Body,
    CallLost,
    CallReturned,
    CallState,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    Ended,
    Entry,
    Fetch,
    ForeignHistory,
    ForkRefused,
    JsonObject,
    Log,
    MessageJoined,
    ModelCalled,
    ModelLost,
    ModelReplied,
    NoticeDue,
    Notified,
    Refused,
    ScopesTold,
    Verified,
    covering,
    digest,
    ids,
)
from waystation.history import (
    check_readable,
    decode_histories,
    describe_workflow,
    find_session_runs,
    log_from_runs,
    none_if_missing,
    read_history_file,
    seconds_of,
)

if TYPE_CHECKING:
    from waystation.client import AgentClient

UNTOLD = (ModelCalled, ModelReplied, ModelLost, MessageJoined, ScopesTold, ForkRefused)
"""What is said between agents, models and users; of a reply only the calls are told."""
CONTENT = frozenset({"args", "response"})
"""Fields of an answer that are told as a digest, and, unless left out, as they are."""
_STATEMENTS = {"claim": "claimed", "release": "released", "view": "viewed", "progress": "progress_told"}


def account(log: Log, *, arguments: bool = True) -> list[JsonObject]:
    """Return the account of an invocation.

    Args:
        log: With all of its entries.
        arguments: Whether to tell arguments and responses, besides their digests.

    Raises:
        ForeignHistory: The log does not go back to the beginning.
    """
    if log.entries_before:
        raise ForeignHistory(
            f"The history of {log.invocation_id!r} begins with entry {log.entries_before}: earlier runs are missing. "
            "Save all of them with `waystation history`, or say with --store where they are kept."
        )
    return list(_Teller(log.invocation_id, arguments).tell(log.entries))


def resets(histories: Iterable[WorkflowHistory]) -> Iterator[JsonObject]:
    """Yield when and why an invocation was reset: what its run had done after the point of it is in no account."""
    for history in histories:
        for event in history.events:
            failed = event.workflow_task_failed_event_attributes
            if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
                about = {"time": _time(seconds_of(event)), "invocation": history.workflow_id, "kind": "reset"}
                yield {**about, "reason": failed.failure.message, "run_id": failed.base_run_id}


class _Teller:
    """Goes through the entries again, and tells what each of them changes."""

    def __init__(self, invocation_id: str, arguments: bool) -> None:
        self._log = Log(invocation_id)
        self._arguments = arguments
        self._asked: dict[str, float] = {}
        """Since when calls wait, by their ids."""
        self._started: set[tuple[str, int]] = set()
        """The calls that were carried out, and which run of each."""
        self._number = 0

    def tell(self, entries: Iterable[Entry]) -> Iterator[JsonObject]:
        """Yield the account."""
        # Entries of one time belong to one workflow task, at the end of which it is clear what is carried out: a call
        # that is approved and cancelled in one task never is.
        for _, task in groupby(entries, lambda entry: entry.time):
            last = None
            for last in task:
                yield from self._one(last)
            assert last is not None
            yield from self._starting(last)

    def _one(self, entry: Entry) -> Iterator[JsonObject]:
        log, body = self._log, entry.body
        reviewed = log.state.approvals.submitted.get(body.ref) if isinstance(body, AnswerReviewed) else None
        call = log.state.calls.get(ids.requesting_call(_named(body) or (reviewed.function_call_id if reviewed else "")))
        settled = call.answer if call else None
        if isinstance(body, CallReturned | ChildReturned | CallLost):
            yield from self._began(entry, _call_of(body), getattr(body, "run", 0))
        waiting = {each.id for each in log.state.waiting()} if isinstance(body, Ended) else set()
        log.append(entry.ref, entry.time, body)
        self._number = log.length - 1
        if not isinstance(body, UNTOLD):
            yield self._line(entry, **self._of(body, reviewed))
        if call and call.answer is not settled and call.answer:
            yield self._decision(entry, call, call.answer)
        for each in log.state.waiting():
            if each.requested_at is not None and self._asked.get(each.id) != each.requested_at:
                self._asked[each.id] = each.requested_at
                yield self._request(entry, each)
        for unanswered in sorted(waiting):
            yield self._line(entry, kind="unanswered", call=unanswered)

    def _starting(self, entry: Entry) -> Iterator[JsonObject]:
        log = self._log
        if (
            log.state.outcome.cancelled
            or log.state.outcome.failure
            or log.state.outcome.ended
            or log.state.over
            or log.state.outcome.concluded
        ):
            return
        for call in log.state.performing():
            yield from self._began(entry, call.id, call.run)

    def _began(self, entry: Entry, call_id: str, run: int) -> Iterator[JsonObject]:
        call = self._log.state.calls.get(call_id)
        if call is None or (call_id, run) in self._started:
            return
        self._started.add((call_id, run))
        told: JsonObject = {"run": run} if run else {}
        if call.call.kind == "agent":
            told["called"] = ids.child_invocation(self._log.invocation_id, call_id)
        if call.policy and call.asked is None:
            told["standing"] = self._standing(call, entry.time)
        approved = call.answer.action if call.answer and call.gate == "passed" else None
        yield self._line(
            entry,
            kind="started",
            call=call_id,
            agent=call.agent,
            tool=call.name,
            effect=call.call.effect,
            approved=approved,
            **self._content("args", call.args),
            **told,
        )

    def _standing(self, call: CallState, now: float) -> str | None:
        """Return which earlier approval lets a call run unasked."""
        assert call.policy is not None
        in_force = [each for each in self._log.state.approvals.standing if each.until > now]
        found = covering(
            in_force,
            agent=call.agent,
            tool=call.name,
            args=call.args,
            declared=call.declared,
            policy=call.policy,
        )
        return found.origin if found else None

    def _request(self, entry: Entry, call: CallState) -> JsonObject:
        started = self._log.state.input
        assert started is not None
        asked = call.pending(self._log.invocation_id, started.user_id, started.session_id)
        return self._line(
            entry,
            kind="requested",
            call=call.id,
            agent=call.agent,
            tool=call.name,
            asks_for=asked.kind,
            digest=asked.digest,
            requester=started.requester or started.user_id,
            user_id=started.user_id,
            deadline=_time(asked.deadline),
            policy=call.policy.record() if call.policy else None,
            **self._content("args", call.args),
        )

    def _decision(self, entry: Entry, call: CallState, answer: Answer) -> JsonObject:
        edited = self._content("args", call.args) if answer.action == "edit" else {}
        about = {"call": call.id, "tool": call.name, "decision": answer.action, "by": answer.by}
        return self._line(entry, kind="decided", **about, **_verified(call.decided_by), **edited)

    def _of(self, body: Body, reviewed: Answer | None) -> JsonObject:
        match body:
            case Began(started):
                names = ("agent", "user_id", "session_id", "requester", "app", "origin")
                about = {name: getattr(started, name) for name in names}
                fork = started.fork and started.fork.model_dump(include={"invocation_id", "event"})
                return {"kind": "began", **about, "fork": fork, "message_digest": digest(started.message)}
            case Refused():
                return {"kind": "not_begun", "reason": body.message}
            case AnswerCounted():
                return self._counted(body.answer)
            case AnswerSubmitted():
                return {**self._answer(body.answer), "kind": "submitted"}
            case AnswerReviewed(ref, review, None) if reviewed:
                return {**self._counted(review.applied_to(reviewed)), "submitted": ref, **_verified(review.who)}
            case AnswerReviewed(ref, review, refused):
                told = self._ignored(refused) if refused else {"kind": "ignored"}
                return {**told, "submitted": ref, **_verified(review.who)}
            case AnswerIgnored():
                return self._ignored(body)
            case NoticeDue(call_id, number):
                policy = self._log.state.calls[call_id].policy
                escalates = policy is not None and policy.notices()[number].escalates
                return {"kind": "escalated" if escalates else "reminded", "call": call_id}
            case Notified(call_id, occasion, report):
                told = {"delivered": list(report.delivered), "failed": dict(report.failed)}
                return {"kind": "notified", "call": call_id, "occasion": occasion, **told}
            case DeadlinePassed():
                return {"kind": "expired", "call": body.function_call_id}
            case CallReturned() | ChildReturned() | CallLost():
                return self._finished(body)
            case CancelRequested():
                return {"kind": "cancel_requested"}
            case Ended():
                return {"kind": "ended", "status": body.status}
            case ModelCalled() | ModelReplied() | ModelLost() | MessageJoined() | ScopesTold() | ForkRefused():
                raise AssertionError("what is not told has no line")
            case _:
                assert_never(body)

    def _finished(self, body: CallReturned | ChildReturned | CallLost) -> JsonObject:
        about = {"kind": "finished", "call": _call_of(body)}
        match body:
            case CallReturned(outcome, run):
                more = {"run": run} if run else {}
                more |= {} if outcome.final else {"final": False}
                return {
                    **about,
                    "error_type": outcome.error_type,
                    **self._content("response", outcome.response),
                    **more,
                }
            case ChildReturned(call_id, result):
                called = ids.child_invocation(self._log.invocation_id, call_id)
                return {**about, "called": called, "status": result.status, "text_digest": digest(result.text)}
            case CallLost(_, failure):
                # Its own error is an outcome; whoever was lost or stopped may have done anything before.
                kind = "finished" if failure.kind in ("error", "schedule_to_start") else "outcome_unknown"
                return {**about, "kind": kind, "loss": failure.kind, "error_type": failure.error_type}

    def _counted(self, answer: Answer) -> JsonObject:
        kind = _STATEMENTS.get(answer.action, "answered")
        return {**self._answer(answer), "kind": kind, "outcome": "counted"}

    def _ignored(self, ignored: AnswerIgnored) -> JsonObject:
        about = {"call": ignored.function_call_id, "by": ignored.by}
        return {"kind": "ignored", "outcome": ignored.reason, "reason": ignored.message, **about}

    def _answer(self, answer: Answer) -> JsonObject:
        """Return what somebody sent; the token, which proves who that is, is not in it."""
        told: JsonObject = {"call": ids.requesting_call(answer.function_call_id)}
        sent = answer.model_dump(mode="json", exclude_defaults=True, exclude={"function_call_id"})
        for name, value in sent.items():
            told |= self._content(name, value) if name in CONTENT else {name: value}
        return told

    def _content(self, name: str, value: Any) -> JsonObject:
        if value is None:
            return {}
        told: JsonObject = {f"{name}_digest": digest(value)}
        return {**told, name: value} if self._arguments else told

    def _line(self, entry: Entry, *, kind: str, **fields: Any) -> JsonObject:
        told = {name: value for name, value in fields.items() if value not in (None, "", [], {}) or name in CONTENT}
        about = {"time": _time(entry.time), "invocation": self._log.invocation_id, "entry": self._number}
        if (fork := self._log.state.input and self._log.state.input.fork) and self._number < fork.entries - (
            kind == "started"
        ):
            about["taken_over"] = fork.invocation_id
        return {**about, "ref": str(entry.ref), "kind": kind, **told}


def _call_of(body: CallReturned | ChildReturned | CallLost) -> str:
    return body.outcome.function_call_id if isinstance(body, CallReturned) else body.function_call_id


def _named(body: Body) -> str | None:
    return getattr(body, "function_call_id", None)


def _verified(who: Verified | None) -> JsonObject:
    """Return who answered, as far as that was verified."""
    return {"verified": who.model_dump(mode="json", exclude_defaults=True)} if who else {}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Gathered:
    """Accounts of invocations, by their ids."""

    arguments: bool = True
    accounts: dict[str, list[JsonObject]] = field(default_factory=dict)
    closed: bool = True
    """Whether all are over."""
    lacking: list[str] = field(default_factory=list)
    """Agents that were called, and whose histories are not there."""

    def add(self, log: Log, histories: Iterable[WorkflowHistory]) -> list[str]:
        """Take the account of a log, which these histories make; return the invocations that it started."""
        each = account(log, arguments=self.arguments), resets(histories)
        told = self.accounts[log.invocation_id] = list(heapq.merge(*each, key=lambda entry: entry["time"]))
        self.closed = self.closed and log.state.outcome.ended is not None
        return [entry["called"] for entry in told if entry["kind"] == "started" and "called" in entry]

    def sheet(self, signer: Signer | None = None) -> list[JsonObject]:
        """Return the lines of a file of all accounts."""
        return sheet_of(
            self.accounts, closed=self.closed, lacking=self.lacking, arguments=self.arguments, signer=signer
        )


async def of_invocation(client: "AgentClient", id: str, *, arguments: bool = True) -> Gathered:
    """Gather the accounts of an invocation, or all of a session, and of all agents below. No worker has to run.

    Raises:
        ForeignHistory: It is no invocation of Waystation, or a session that has none.
        RPCError: The server does not know it.
        StoreFailed: Part of a history was archived, and is not in the client's store.
    """
    gathered = Gathered(arguments)
    named = await _in_session(client, id, gathered) or [id]
    for each in named:
        recorded = client.invocation(each).histories()
        found = await (recorded if each == id else none_if_missing(recorded))
        if found is None:
            gathered.lacking.append(each)
            continue
        histories = await decode_histories(found, client.temporal.data_converter)
        named += gathered.add(await log_from_runs(histories, client.blobs.get), histories)
    return gathered


async def _in_session(client: "AgentClient", id: str, gathered: Gathered) -> list[str]:
    """Return the invocations of a session, in their order; none for what is no session."""
    found = await describe_workflow(client.temporal, id)
    if found is None or found.workflow_type != SESSION_WORKFLOW:
        return []
    gathered.closed = found.status is not WorkflowExecutionStatus.RUNNING
    runs = {run.workflow_id.removeprefix(f"{id}/") for run in await find_session_runs(client.temporal, id)}
    numbers = sorted(int(name) for name in runs if name.isdecimal())
    if not numbers:
        raise ForeignHistory(f"The session {id!r} has no invocation.")
    return [ids.session_invocation(id, number) for number in numbers]


async def of_files(
    paths: Iterable[Path], converter: DataConverter, fetch: Fetch, *, arguments: bool = True
) -> Gathered:
    """Gather the accounts of histories in files, as `waystation history` writes them.

    Args:
        paths: One file for each invocation.
        converter: Reads their payloads.
        fetch: Reads parts of them that were archived.
        arguments: Whether to tell arguments.

    Raises:
        ForeignHistory: One is no invocation of Waystation, or damaged.
        StoreFailed: Part of one was archived, and is not to be had.
        OSError: One cannot be read.
    """
    gathered = Gathered(arguments)
    called: list[str] = []
    for path in paths:
        histories = await decode_histories(read_history_file(path).histories, converter)
        check_readable(histories, repr(str(path)))
        called += gathered.add(await log_from_runs(histories, fetch), histories)
    gathered.lacking = [id for id in called if id not in gathered.accounts]
    return gathered


def compare(sheet: Sheet, live: Gathered) -> int:
    """Look whether a file tells what histories say; return how many entries they have that are newer than the file.

    Raises:
        Fault: It tells something else.
    """
    newer = 0
    for invocation in sheet.invocations:
        told, recorded = sheet.of(invocation), live.accounts.get(invocation)
        if recorded is None:
            raise Fault(1, f"nothing is known any more of the invocation {invocation!r} that it names")
        for number, entry in enumerate(told):
            if number >= len(recorded) or entry != recorded[number]:
                raise Fault(_line_number(sheet, entry), f"the history of {invocation!r} says something else")
        if sheet.end.get("closed") and len(recorded) > len(told):
            raise Fault(int(sheet.end["n"]) + 1, f"the history of {invocation!r} goes on after what the file tells")
        newer += len(recorded) - len(told)
    if strangers := [e for e in sheet.entries if e.get("invocation") not in sheet.invocations]:
        raise Fault(_line_number(sheet, strangers[0]), "it is of an invocation that the first line does not name")
    return newer


def same_start(sheet: Sheet, id: str) -> None:
    """Look whether a file is about an invocation.

    Raises:
        ForeignHistory: It is about another.
    """
    if id not in sheet.invocations:
        raise ForeignHistory(
            f"The file is about {', '.join(map(repr, sheet.invocations)) or 'nothing'}, not about {id!r}."
        )


def _line_number(sheet: Sheet, entry: JsonObject) -> int:
    return next(n for n, each in enumerate(sheet.entries, 2) if each is entry)
