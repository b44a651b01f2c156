"""The account of one invocation: what was asked, answered and carried out, in the order in which it happened.

It is derived from the log's entries, so from history alone: a live invocation, a closed one and an exported file give
the same account, and that of a running invocation only grows.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, assert_never

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowHistory

from waystation.core import ids
from waystation.core.answer import Answer
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
from waystation.core.errors import ForeignHistory
from waystation.core.log import Log
from waystation.core.payload import JsonObject, digest
from waystation.core.policy import Verified
from waystation.core.standing import covering
from waystation.history import seconds_of

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
        reviewed = log.submitted.get(body.ref) if isinstance(body, AnswerReviewed) else None
        call = log.calls.get(ids.requesting_call(_named(body) or (reviewed.function_call_id if reviewed else "")))
        settled = call.answer if call else None
        if isinstance(body, CallReturned | ChildReturned | CallLost):
            yield from self._began(entry, _call_of(body), getattr(body, "run", 0))
        waiting = {each.id for each in log.waiting()} if isinstance(body, Ended) else set()
        log.append(entry.ref, entry.time, body)
        self._number = log.length - 1
        if not isinstance(body, UNTOLD):
            yield self._line(entry, **self._of(body, reviewed))
        if call and call.answer is not settled and call.answer:
            yield self._decision(entry, call, call.answer)
        for each in log.waiting():
            if each.requested_at is not None and self._asked.get(each.id) != each.requested_at:
                self._asked[each.id] = each.requested_at
                yield self._request(entry, each)
        for unanswered in sorted(waiting):
            yield self._line(entry, kind="unanswered", call=unanswered)

    def _starting(self, entry: Entry) -> Iterator[JsonObject]:
        log = self._log
        if log.cancelled or log.failure or log.ended or log.over or log.concluded:
            return
        for call in log.performing():
            yield from self._began(entry, call.id, call.run)

    def _began(self, entry: Entry, call_id: str, run: int) -> Iterator[JsonObject]:
        call = self._log.calls.get(call_id)
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
        in_force = [each for each in self._log.standing if each.until > now]
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
        started = self._log.input
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
                about = {"agent": started.agent, "user_id": started.user_id, "session_id": started.session_id}
                more = {"requester": started.requester, "app": started.app, "origin": started.origin}
                fork = started.fork and started.fork.model_dump(include={"invocation_id", "event"})
                return {"kind": "began", **about, **more, "fork": fork, "message_digest": digest(started.message)}
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
                policy = self._log.calls[call_id].policy
                escalates = policy is not None and policy.notices()[number].escalates
                return {"kind": "escalated" if escalates else "reminded", "call": call_id}
            case Notified(call_id, occasion, report):
                told = {"delivered": list(report.delivered), "failed": dict(report.failed)}
                return {"kind": "notified", "call": call_id, "occasion": occasion, **told}
            case DeadlinePassed():
                return {"kind": "expired", "call": body.function_call_id}
            case CallReturned(outcome, run):
                said = self._content("response", outcome.response)
                said |= {"run": run} if run else {}
                said |= {} if outcome.final else {"final": False}
                return {"kind": "finished", "call": outcome.function_call_id, "error_type": outcome.error_type, **said}
            case ChildReturned():
                called = ids.child_invocation(self._log.invocation_id, body.function_call_id)
                about = {"call": body.function_call_id, "called": called, "status": body.result.status}
                return {"kind": "finished", **about, "text_digest": digest(body.result.text)}
            case CallLost():
                # Its own error is an outcome; whoever was lost or stopped may have done anything before.
                kind = "finished" if body.failure.kind in ("error", "schedule_to_start") else "outcome_unknown"
                about = {"call": body.function_call_id, "loss": body.failure.kind}
                return {"kind": kind, **about, "error_type": body.failure.error_type}
            case CancelRequested():
                return {"kind": "cancel_requested"}
            case Ended():
                return {"kind": "ended", "status": body.status}
            case ModelCalled() | ModelReplied() | ModelLost() | MessageJoined() | ScopesTold() | ForkRefused():
                raise AssertionError("what is not told has no line")
            case _:
                assert_never(body)

    def _counted(self, answer: Answer) -> JsonObject:
        kind = _STATEMENTS.get(answer.action, "answered")
        return {**self._answer(answer), "kind": kind, "outcome": "counted"}

    def _ignored(self, ignored: AnswerIgnored) -> JsonObject:
        about = {"call": ignored.function_call_id, "by": ignored.by}
        return {"kind": "ignored", "outcome": ignored.reason, "reason": ignored.message, **about}

    def _answer(self, answer: Answer) -> JsonObject:
        """Return what somebody sent; the token, which proves who that is, is not in it."""
        told: JsonObject = {"call": ids.requesting_call(answer.function_call_id)}
        for name, field in answer.model_dump(mode="json", exclude_defaults=True).items():
            told |= self._content(name, field) if name in CONTENT else {name: field}
        del told["function_call_id"]
        return told

    def _content(self, name: str, value: Any) -> JsonObject:
        if value is None:
            return {}
        told: JsonObject = {f"{name}_digest": digest(value)}
        return {**told, name: value} if self._arguments else told

    def _line(self, entry: Entry, *, kind: str, **fields: Any) -> JsonObject:
        told = {name: value for name, value in fields.items() if value not in (None, "", [], {}) or name in CONTENT}
        about = {"time": _time(entry.time), "invocation": self._log.invocation_id, "entry": self._number}
        if (fork := self._log.input and self._log.input.fork) and self._number < fork.entries - (kind == "started"):
            about["taken_over"] = fork.invocation_id
        return {**about, "ref": entry.ref, "kind": kind, **told}


def _call_of(body: CallReturned | ChildReturned | CallLost) -> str:
    return body.outcome.function_call_id if isinstance(body, CallReturned) else body.function_call_id


def _named(body: Body) -> str | None:
    return getattr(body, "function_call_id", None)


def _verified(who: Verified | None) -> JsonObject:
    """Return who answered, as far as that was verified."""
    return {"verified": who.model_dump(mode="json", exclude_defaults=True)} if who else {}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
