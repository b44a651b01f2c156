"""Create the account of an invocation: a list of its requests, answers and calls, in the order they happened.

An account is derived only from log entries, so a server and a history file yield the same account. Unless an
invocation is reset, its account only grows.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.converter import DataConverter

from waystation.approvers.audit.sheet import Fault, Sheet, Signer, create_sheet
from waystation.core import ids
from waystation.core.actions import ACTIONS
from waystation.core.approval import Answer, Verified
from waystation.core.contract import SESSION_WORKFLOW
from waystation.core.errors import ForeignHistory
from waystation.core.log import (
    AnswerCounted,
    AnswerIgnored,
    AnswerVerified,
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
    ForkRefused,
    GivenUp,
    Held,
    Log,
    MessageJoined,
    ModelCalled,
    ModelLost,
    ModelReplied,
    Notified,
    OutcomeFound,
    OutcomeRef,
    Refused,
    ReminderDue,
    ScopesFlushed,
    VerificationRequested,
    origin_of,
    parse_ref,
    stage_of,
)
from waystation.core.payload import JsonObject, digest
from waystation.core.projection import Fetch
from waystation.history import (
    called_agent_ids,
    check_readable,
    decode_histories,
    describe_workflow,
    fetch_log,
    fetch_or_none,
    find_session_runs,
    get_time_s,
    read_history_file,
)

if TYPE_CHECKING:
    from waystation.client import AgentClient

OMITTED = (ModelCalled, ModelReplied, ModelLost, ScopesFlushed, ForkRefused, Held)
"""Log entries that do not appear in an account: model calls, saved state, holds, and forks that could not be read.
Tool calls in a model's reply have their own lines.
"""
CONTENT = frozenset({"args", "payload", "response"})
"""Fields that an account contains as a digest and, unless arguments are omitted, also in full."""


def create_account(log: Log, *, arguments: bool = True) -> list[JsonObject]:
    """Return the account of an invocation.

    Args:
        log: The complete log of the invocation.
        arguments: Whether to include arguments and responses in addition to their digests.

    Raises:
        ForeignHistory: Earlier entries are missing from the log.
    """
    if log.entries_before:
        raise ForeignHistory(
            f"The history of {log.invocation_id!r} begins with entry {log.entries_before}: earlier runs are missing. "
            "Save all runs with `waystation history`, or pass the workers' store with --store."
        )
    return list(_Accountant(log.invocation_id, arguments).list_lines(log.entries))


def list_resets(histories: Iterable[WorkflowHistory]) -> Iterator[JsonObject]:
    """Yield an audit line for each reset. Accounts do not contain what the abandoned run did after the reset point."""
    for history in histories:
        for event in history.events:
            failed = event.workflow_task_failed_event_attributes
            if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
                yield {
                    "time": _format_time(get_time_s(event)),
                    "invocation": history.workflow_id,
                    "kind": "reset",
                    "reason": failed.failure.message,
                    "run_id": failed.base_run_id,
                }


class _Accountant:
    """Replays the entries of a log and describes each change as an audit line."""

    def __init__(self, invocation_id: str, arguments: bool) -> None:
        self._log = Log(invocation_id)
        self._arguments = arguments
        self._requested: dict[str, float] = {}
        """When each call last started to wait for an answer, by call ID."""
        self._started: set[tuple[str, int]] = set()
        """The call ID and run number of every call that has started."""
        self._number = 0

    def list_lines(self, entries: Iterable[Entry]) -> Iterator[JsonObject]:
        """Yield the lines of the account."""
        # Entries with the same time belong to one workflow task. Calls start at the end of the task, so a call that is
        # approved and canceled in the same task never runs.
        for _, task in groupby(entries, lambda entry: entry.time):
            entry = None
            for entry in task:
                yield from self._apply(entry)
            assert entry is not None
            yield from self._start_calls(entry)

    def _apply(self, entry: Entry) -> Iterator[JsonObject]:
        log, body = self._log, entry.body
        reviewed = log.state.approvals.submitted.get(body.ref) if isinstance(body, AnswerVerified) else None
        call_id = getattr(body, "function_call_id", None) or (reviewed.function_call_id if reviewed else "")
        call = log.state.calls.get(ids.requesting_call(call_id))
        previous_answer = call.answer if call else None
        if isinstance(body, CallReturned | ChildReturned | CallLost):
            yield from self._start_call(entry, _call_id(body), getattr(body, "run", 0))
        unanswered = {waiting.id for waiting in log.state.waiting()} if isinstance(body, Ended) else set()
        log.append(entry.ref, entry.time, body)
        self._number = log.length - 1
        if not isinstance(body, OMITTED) and not (isinstance(body, CallReturned) and body.outcome.proceed):
            yield self._line(entry, **self._describe(body, reviewed))
        if call and call.answer is not previous_answer and call.answer:
            yield self._decision(entry, call, call.answer)
        for waiting in log.state.waiting():
            if waiting.requested_at is not None and self._requested.get(waiting.id) != waiting.requested_at:
                self._requested[waiting.id] = waiting.requested_at
                yield self._request(entry, waiting)
        for id in sorted(unanswered):
            yield self._line(entry, kind="unanswered", call=id)

    def _start_calls(self, entry: Entry) -> Iterator[JsonObject]:
        state = self._log.state
        outcome = state.outcome
        if not (outcome.cancelled or outcome.failure or outcome.ended or state.over or outcome.concluded):
            for call in state.performing():
                yield from self._start_call(entry, call.id, call.run)

    def _start_call(self, entry: Entry, call_id: str, run: int) -> Iterator[JsonObject]:
        call = self._log.state.calls.get(call_id)
        if call is None or stage_of(call) == "check" or (call_id, run) in self._started:
            return
        self._started.add((call_id, run))
        is_agent = call.call.kind == "agent"
        yield self._line(
            entry,
            kind="started",
            call=call_id,
            agent=call.agent,
            tool=call.name,
            tool_origin=origin_of(call),
            effect=call.call.effect,
            approved=call.answer.action if call.answer and call.gate == "passed" else None,
            **self._content_fields("args", call.args),
            run=run or None,
            called=ids.child_invocation(self._log.invocation_id, call_id) if is_agent else None,
            inherited=call.call.standing if call.asked is None else None,
        )

    def _request(self, entry: Entry, call: CallState) -> JsonObject:
        started = self._log.state.input
        assert started is not None
        pending = self._log.state.pending_call(call)
        return self._line(
            entry,
            kind="requested",
            call=call.id,
            agent=call.agent,
            tool=call.name,
            tool_origin=origin_of(call),
            asks_for=pending.kind,
            digest=pending.digest,
            requester=started.requester or started.user_id,
            joined_requesters=list(pending.joined_requesters) or None,
            verified_requesters=list(pending.verified_requesters) or None,
            user_id=started.user_id,
            deadline=_format_time(pending.deadline),
            policy=call.policy.record() if call.policy else None,
            **self._content_fields("args", call.args),
        )

    def _decision(self, entry: Entry, call: CallState, answer: Answer) -> JsonObject:
        return self._line(
            entry,
            kind="decided",
            call=call.id,
            tool=call.name,
            decision=answer.action,
            by=answer.by,
            interface=answer.interface,
            **_identity_fields(call.decided_by),
            **(self._content_fields("args", call.args) if answer.action == "edit" else {}),
        )

    def _describe(self, body: Body, reviewed: Answer | None) -> JsonObject:
        match body:
            case Began(started):
                names = ("agent", "user_id", "session_id", "requester", "app", "origin", "tenant")
                return {
                    "kind": "began",
                    **{name: getattr(started, name) for name in names},
                    "fork": started.fork and started.fork.model_dump(include={"invocation_id", "event"}),
                    "message_digest": digest(started.message),
                }
            case Refused():
                return {"kind": "not_begun", "reason": body.message}
            case AnswerCounted():
                return self._describe_counted(body.answer)
            case VerificationRequested():
                return {**self._answer_fields(body.answer), "kind": "submitted"}
            case AnswerVerified(ref, verification, None) if reviewed:
                return {
                    **self._describe_counted(verification.applied_to(reviewed)),
                    "submitted": ref,
                    **_identity_fields(verification.who),
                }
            case AnswerVerified(ref, verification, refused):
                outcome = self._describe_ignored(refused) if refused else {"kind": "ignored"}
                return {**outcome, "submitted": ref, **_identity_fields(verification.who)}
            case AnswerIgnored():
                return self._describe_ignored(body)
            case ReminderDue(call_id, number):
                policy = self._log.state.calls[call_id].policy
                escalates = policy is not None and policy.notices()[number].escalates
                return {"kind": "escalated" if escalates else "reminded", "call": call_id}
            case Notified(call_id, occasion, report):
                delivery = {"delivered": list(report.delivered), "failed": dict(report.failed)}
                return {"kind": "notified", "call": call_id, "occasion": occasion, **delivery}
            case MessageJoined(message, requester=requester):
                return {"kind": "joined", "requester": requester, "message_digest": digest(message)}
            case DeadlinePassed():
                return {"kind": "expired", "call": body.function_call_id}
            case CallReturned() | ChildReturned() | CallLost():
                return self._describe_finished(body)
            case OutcomeFound():
                return self._describe_found(body)
            case CancelRequested() | GivenUp():
                return {"kind": "given_up" if isinstance(body, GivenUp) else "cancel_requested"}
            case Ended():
                return {"kind": "ended", "status": body.status}
            case ModelCalled() | ModelReplied() | ModelLost() | ScopesFlushed() | ForkRefused() | Held():
                raise AssertionError("entries of this kind do not appear in an account")
            case _:
                assert_never(body)

    def _describe_found(self, body: OutcomeFound) -> JsonObject:
        asked = ids.child_invocation(self._log.invocation_id, str(OutcomeRef(body.function_call_id, body.run)))
        found = {name: value for name, value in (body.answer or {}).items() if name not in (*CONTENT, "signed")}
        return {
            "kind": "outcome_found",
            "call": body.function_call_id,
            "run": body.run or None,
            "asked": asked,
            **found,
        }

    def _describe_finished(self, body: CallReturned | ChildReturned | CallLost) -> JsonObject:
        about = {"kind": "finished", "call": _call_id(body)}
        match body:
            case CallReturned(outcome, run):
                return {
                    **about,
                    "error_type": outcome.error_type,
                    **self._content_fields("response", outcome.response),
                    "run": run or None,
                    "final": None if outcome.final else False,
                }
            case ChildReturned(call_id, result):
                called = ids.child_invocation(self._log.invocation_id, call_id)
                return {**about, "called": called, "status": result.status, "text_digest": digest(result.text)}
            case CallLost(_, failure):
                # An error that the tool raised is a known outcome. A tool that was lost or stopped may have had any
                # effect.
                kind = "finished" if failure.kind in ("error", "schedule_to_start") else "outcome_unknown"
                return {**about, "kind": kind, "loss": failure.kind, "error_type": failure.error_type}

    def _describe_counted(self, answer: Answer) -> JsonObject:
        return {**self._answer_fields(answer), "kind": ACTIONS[answer.action].audited_as, "outcome": "counted"}

    def _describe_ignored(self, ignored: AnswerIgnored) -> JsonObject:
        return {
            "kind": "ignored",
            "outcome": ignored.reason,
            "reason": ignored.message,
            "call": ignored.function_call_id,
            "by": ignored.by,
        }

    def _answer_fields(self, answer: Answer) -> JsonObject:
        """Return the fields of an answer, without the approver's token."""
        fields: JsonObject = {"call": ids.requesting_call(answer.function_call_id)}
        for name, value in answer.model_dump(mode="json", exclude_defaults=True, exclude={"function_call_id"}).items():
            fields |= self._content_fields(name, value) if name in CONTENT else {name: value}
        return fields

    def _content_fields(self, name: str, value: Any) -> JsonObject:
        if value is None:
            return {}
        return {f"{name}_digest": digest(value), **({name: value} if self._arguments else {})}

    def _line(self, entry: Entry, *, kind: str, **fields: Any) -> JsonObject:
        line: JsonObject = {
            "time": _format_time(entry.time),
            "invocation": self._log.invocation_id,
            "entry": self._number,
        }
        fork = self._log.state.input and self._log.state.input.fork
        if fork and self._number < fork.entries - (kind == "started"):
            line["forked"] = fork.invocation_id
        line |= {"ref": str(entry.ref), "kind": kind}
        line |= {name: value for name, value in fields.items() if value not in (None, "", [], {}) or name in CONTENT}
        return line


def _call_id(body: CallReturned | ChildReturned | CallLost) -> str:
    return body.outcome.function_call_id if isinstance(body, CallReturned) else body.function_call_id


def _identity_fields(who: Verified | None) -> JsonObject:
    return {"verified": who.model_dump(mode="json", exclude_defaults=True)} if who else {}


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Accounts:
    """The accounts of an invocation or session and of all agents that it called."""

    arguments: bool = True
    by_invocation: dict[str, list[JsonObject]] = field(default_factory=dict)
    closed: bool = True
    """Whether all invocations (and the session, if the accounts are those of a session) have ended."""
    missing: list[str] = field(default_factory=list)
    """IDs of a session's or called agents' invocations whose histories are missing."""

    def add(self, log: Log, histories: Sequence[WorkflowHistory]) -> list[str]:
        """Add the account of an invocation, including its resets. Return the invocation IDs of called agents, and of
        the invocations that ask operators about its calls.
        """
        account = create_account(log, arguments=self.arguments)
        lines = list(heapq.merge(account, list_resets(histories), key=lambda line: str(line["time"])))
        self.by_invocation[log.invocation_id] = lines
        self.closed = self.closed and log.state.outcome.ended is not None
        called = [line["called"] for line in lines if line["kind"] == "started" and "called" in line]
        children = (id for run in histories for id in called_agent_ids(run))
        return called + [id for id in children if isinstance(parse_ref(id.rpartition("/")[2]), OutcomeRef)]

    def sheet(self, signer: Signer | None = None) -> list[JsonObject]:
        """Return the lines of an audit file that contains all accounts."""
        return create_sheet(
            self.by_invocation, closed=self.closed, missing=self.missing, arguments=self.arguments, signer=signer
        )


async def gather_invocation(client: "AgentClient", id: str, *, arguments: bool = True) -> Accounts:
    """Gather the accounts of an invocation or session and of all called agents. This does not require a worker.

    Raises:
        ForeignHistory: The ID does not belong to a Waystation invocation, or the session has no invocations.
        RPCError: No workflow with this ID exists.
        StoreFailed: Part of a history was archived and is not in the client's store.
    """
    accounts = Accounts(arguments)
    queue = await _session_invocations(client, id, accounts) or [id]
    for invocation_id in queue:  # the loop appends the invocations of called agents
        fetching = client.invocation(invocation_id).histories()
        encoded = await (fetching if invocation_id == id else fetch_or_none(fetching))
        if encoded is None:
            accounts.missing.append(invocation_id)
            continue
        histories = await decode_histories(encoded, client.temporal.data_converter)
        queue += accounts.add(await fetch_log(histories, client.blobs.get), histories)
    return accounts


async def _session_invocations(client: "AgentClient", id: str, accounts: Accounts) -> list[str]:
    """Return the IDs of a session's invocations in order, or an empty list if `id` is not a session ID.

    For a session, also set `accounts.closed` to whether the session has ended.

    Raises:
        ForeignHistory: The session has no invocations.
    """
    description = await describe_workflow(client.temporal, id)
    if description is None or description.workflow_type != SESSION_WORKFLOW:
        return []
    accounts.closed = description.status is not WorkflowExecutionStatus.RUNNING
    names = {run.workflow_id.removeprefix(f"{id}/") for run in await find_session_runs(client.temporal, id)}
    numbers = sorted(int(name) for name in names if name.isdecimal())
    if not numbers:
        raise ForeignHistory(f"The session {id!r} has no invocations.")
    return [ids.session_invocation(id, number) for number in numbers]


async def gather_files(
    paths: Iterable[Path], converter: DataConverter, fetch: Fetch, *, arguments: bool = True
) -> Accounts:
    """Gather accounts from history files written by `waystation history`.

    Args:
        paths: One file per invocation. Called agents need their own files.
        converter: Decodes the payloads in the files.
        fetch: Reads the archived parts of the histories.
        arguments: Whether to include arguments and responses in addition to their digests.

    Raises:
        ForeignHistory: A file is damaged, or is not the history of a Waystation invocation.
        StoreFailed: An archived part is missing.
        OSError: A file cannot be read.
    """
    accounts = Accounts(arguments)
    called: list[str] = []
    for path in paths:
        histories = await decode_histories(read_history_file(path).histories, converter)
        check_readable(histories, repr(str(path)))
        called += accounts.add(await fetch_log(histories, fetch), histories)
    accounts.missing = [id for id in called if id not in accounts.by_invocation]
    return accounts


def compare(sheet: Sheet, live: Accounts) -> int:
    """Compare an audit file with histories. Return the number of entries added to the histories since the export.

    Raises:
        Fault: The file differs from the histories, names an invocation that no longer exists, or is marked as closed
            although a history continues.
    """
    newer = 0
    for invocation in sheet.invocations:
        entries, recorded = sheet.of(invocation), live.by_invocation.get(invocation)
        if recorded is None:
            raise Fault(1, f"it names the invocation {invocation!r}, which no longer exists")
        for number, entry in enumerate(entries):
            if number >= len(recorded) or entry != recorded[number]:
                raise Fault(_line_number(sheet, entry), f"it differs from the history of {invocation!r}")
        if sheet.end.get("closed") and len(recorded) > len(entries):
            raise Fault(int(sheet.end["n"]) + 1, f"the history of {invocation!r} continues after the end of the file")
        newer += len(recorded) - len(entries)
    for entry in sheet.entries:
        if entry.get("invocation") not in sheet.invocations:
            raise Fault(_line_number(sheet, entry), "it belongs to an invocation that the first line does not name")
    return newer


def check_subject(sheet: Sheet, id: str) -> None:
    """Check that an audit file covers an invocation.

    Raises:
        ForeignHistory: The file does not cover this invocation.
    """
    if id not in sheet.invocations:
        raise ForeignHistory(
            f"The file covers {', '.join(map(repr, sheet.invocations)) or 'no invocation'}, not {id!r}."
        )


def _line_number(sheet: Sheet, entry: JsonObject) -> int:
    return next(number for number, other in enumerate(sheet.entries, 2) if other is entry)
