"""Descriptions of log entries, answers and approval policies in words, for terminals, web pages and reports."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, assert_never

from waystation.core import ids, summary
from waystation.core.actions import ACTIONS, ActionSpec
from waystation.core.approval import ROLE, Answer, PendingCall, Verified, default_hint
from waystation.core.contract import Call, Event, ModelReply
from waystation.core.log import (
    AnswerCounted,
    AnswerIgnored,
    AnswerVerified,
    Began,
    CallLost,
    CallRef,
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
    InvocationState,
    Log,
    MessageJoined,
    ModelCalled,
    ModelLost,
    ModelReplied,
    ModelReplyRef,
    Notified,
    OutcomeFound,
    Refused,
    ReminderDue,
    ScopesFlushed,
    VerificationRequested,
    call_id_of,
    find_changes,
    without_verdict,
)
from waystation.core.projection import HELD_TOOL, MODEL
from waystation.presentation import terminal, text_safety

if TYPE_CHECKING:
    from waystation.client import InvocationEntry
    from waystation.history import ActivityAttempts, PendingRetry

MAX_SHOWN_CHARS = 600
"""Maximum number of characters to show of a comment, or of the reason for a failure or a refusal."""

_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?):\s*$", re.MULTILINE)
"""Matches the heading of a section in a docstring."""

MAX_REASON_CHARS = 300
"""Maximum number of characters to show of the reason why an attempt failed."""
_OCCASIONS: dict[str, str] = {
    "asked": "the call is pending",
    "reminder": "the call is still pending",
    "escalation": "the call was escalated",
    "decided": "the call was decided",
    "expired": "the deadline passed without an answer",
}


class Fact(NamedTuple):
    """A labeled fact about a log entry."""

    label: str
    text: str
    is_failure: bool = False


def by(answer: Answer | AnswerIgnored, who: Verified | None = None) -> str:
    """Return ` by NAME` and whether the identity was verified, or an empty string if the name is unknown."""
    if who is not None:
        return f" by {text_safety.format_line(who.subject)} (identity verified)"
    return f" by {text_safety.format_line(answer.by)} (unverified)" if answer.by else ""


def decision(call: CallState) -> str:
    """Describe how a call that needed a person was decided. Return an empty string while the call is pending."""
    if call.answer:
        changes = "".join(f", {line}" for line in terminal.list_changes(find_changes(call)))
        return f"{ACTIONS[call.answer.action].effect}{by(call.answer, call.decided_by)}{changes}"
    return "expired without an answer" if call.expired else ""


def credit_answers(events: Iterable[Event], state: InvocationState) -> Iterator[Event]:
    """Yield events, and add the approver and the changed arguments to each answer whose approver no event names."""
    notes = [(event.custom_metadata or {}).get("approval") for event in state.events]
    named = {(note.get("function_call_id"), note.get("by")) for note in notes if note}
    for event in events:
        for response in event.function_responses():
            call = state.calls.get(ids.requesting_call(str(response.get("id"))))
            if call is None or call.answer is None or call.answered_by is None or (call.id, call.answered_by) in named:
                continue
            if event.timestamp >= (call.answered_at or 0.0):  # not the interim response of a long-running call
                named.add((call.id, call.answered_by))
                answer = call.answer.model_dump(include={"action", "by", "comment"}, exclude_none=True)
                answer |= {"edited": find_changes(call)} if call.answer.action == "edit" else {}
                metadata = {**(event.custom_metadata or {}), "approval": {"function_call_id": call.id, **answer}}
                event = event.model_copy(update={"custom_metadata": metadata})
        yield event


def story(log: Log, state: CallState) -> list[tuple[float, str]]:
    """Return what happened to a call in the recorded runs, as lines with their times, oldest first."""
    verified = {entry.body.ref for entry in log.entries if isinstance(entry.body, AnswerVerified)}
    lines = [
        (entry.time, describe(entry, log).text)
        for entry in log.entries
        if _call_of(entry, log) == state.id
        # Skip a submitted answer if it has been verified, because the verified answer gets its own line.
        and not (isinstance(entry.body, VerificationRequested) and str(without_verdict(entry.ref)) in verified)
    ]
    if state.requested_at is not None:
        lines.append((state.requested_at, "started waiting for an answer"))
    # The sort is stable, so entries with equal times keep their order.
    return sorted(lines, key=lambda line: line[0])


def facts_of(entry: Entry | None, log: Log, attempts: "Mapping[str, ActivityAttempts]") -> Iterator[Fact]:
    """Yield facts about a log entry, such as a result with its duration and attempts."""
    if entry is None:
        return
    if call := log.state.calls.get(_call_of(entry, log)):
        yield Fact("tool", f"{call.name} [{call.id}], called by {call.agent}")
        yield Fact("input", terminal.clip_json(call.args, terminal.MAX_ARGUMENT))
    ran_s = entry.body.outcome.duration_s if isinstance(entry.body, CallReturned) else None
    match entry.body:
        case CallReturned(outcome):
            if outcome.response is not None:
                yield Fact("outcome", terminal.clip_json(outcome.response, terminal.MAX_ARGUMENT))
            if outcome.error_type:
                yield Fact("error", outcome.error_type, True)
        case AnswerCounted(_, answer) | VerificationRequested(_, answer) if answer.response is not None:
            yield describe(entry, log)
            yield Fact("response", terminal.clip_json(answer.response, terminal.MAX_ARGUMENT))
        case _:
            yield describe(entry, log)
    if isinstance(entry.ref, ModelReplyRef | CallRef):
        yield from _timing(attempts.get(str(replace(entry.ref, attempt=""))), ran_s)


def describe(entry: Entry, log: Log) -> Fact:
    """Describe a log entry as one labeled fact."""
    call = log.state.calls.get(_call_of(entry, log))
    tool = call.name if call else ""
    match entry.body:
        case Began(started):
            return Fact("start", f"agent {started.agent}, for user {started.user_id}")
        case Refused(message):
            return Fact("refused", message, True)
        case ModelCalled(number, turn):
            return Fact("model", f"model call {number} starts, for {log.state.runs[turn].agent}")
        case ModelReplied(number, reply):
            return Fact("model", _reply(number, reply))
        case ModelLost(number, failure):
            return Fact("model", f"model call {number} failed: {terminal.describe_failure(failure)}", True)
        case CallReturned(outcome):
            took = f" after {text_safety.format_duration(outcome.duration_s)}" if outcome.duration_s >= 0.05 else ""
            failed = f", {text_safety.format_line(outcome.error_type)}" if outcome.error_type else ""
            what = "the approval was verified" if outcome.proceed else "the tool returned"
            return Fact("outcome", f"{what}{took}{failed}", bool(failed))
        case ChildReturned(_, result):
            return Fact("outcome", f"the called agent {result.status}: {terminal.clip(result.text)}")
        case CallLost(_, failure):
            reason = text_safety.format_line(terminal.describe_failure(failure), MAX_SHOWN_CHARS)
            return Fact("lost", f"the tool failed without a result: {reason}", True)
        case AnswerCounted(_, answer):
            return Fact("answer", _answered(answer, tool))
        case VerificationRequested(_, answer):
            return Fact("answer", f"“{answer.action}” was sent{by(answer)} and is being verified")
        case AnswerVerified(_, verification, AnswerIgnored() as refused):
            return Fact("ignored", _ignored(refused, verification.who))
        case AnswerVerified(ref, verification):
            submitted = _submitted(log, ref)
            return Fact("answer", _answered(submitted, tool, verification.who) if submitted else "the answer counts")
        case AnswerIgnored() as refused:
            return Fact("ignored", _ignored(refused))
        case MessageJoined(requester=requester):
            return Fact("message", f"{terminal.escape(requester or 'the user')} sent another message")
        case DeadlinePassed():
            return Fact("deadline", "the deadline passed without an answer", True)
        case ReminderDue(_, number):
            notices = call.policy.notices() if call and call.policy else ()
            escalates = number < len(notices) and notices[number].escalates
            due = "the call was escalated" if escalates else "a reminder was due"
            return Fact("notice", f"no one has answered: {due}")
        case Notified(_, occasion, report):
            failed = f"; failed: {', '.join(map(text_safety.format_line, report.failed))}" if report.failed else ""
            channels = ", ".join(map(text_safety.format_line, report.delivered)) or "no one"
            about = _OCCASIONS.get(occasion.rstrip("0123456789"), "the call changed")
            return Fact("notice", f"notified {channels}: {about}{failed}")
        case ScopesFlushed(last):
            return Fact("state", f"`user:` and `app:` state was saved for the events up to {last}")
        case ForkRefused(failure):
            return Fact("fork", f"the forked invocation could not be read: {failure.message}", True)
        case Held() | GivenUp() | OutcomeFound():
            return _describe_for_operators(entry.body)
        case CancelRequested():
            return Fact("cancel", "cancellation was requested")
        case Ended(status):
            return Fact("end", f"the invocation is {status}")
        case _:
            assert_never(entry.body)


def _describe_for_operators(body: Held | GivenUp | OutcomeFound) -> Fact:
    if isinstance(body, OutcomeFound):
        row = ACTIONS.get(str((body.answer or {}).get("action")))
        return Fact("answer", f"the call was {row.effect}" if row else "operators can no longer be asked")
    if isinstance(body, GivenUp):
        return Fact("held", "an operator gave up the held calls", True)
    reason = terminal.HOLDS.get(body.failure.hold, body.failure.hold)
    return Fact("held", f"{reason}: {terminal.describe_failure(body.failure)}", True)


def _call_of(entry: Entry, log: Log) -> str:
    """Return the ID of the call that an entry is about, or an empty string if it is not about a call."""
    match entry.body:
        case CallReturned(outcome):
            return outcome.function_call_id
        case Held(activity_id):
            return call_id_of(activity_id)
        case AnswerVerified(ref):
            answer = _submitted(log, ref)
            return answer.function_call_id if answer else ""
        case body:
            return ids.requesting_call(getattr(body, "function_call_id", None) or "")


def _submitted(log: Log, ref: str) -> Answer | None:
    return next(
        (
            entry.body.answer
            for entry in log.entries
            if isinstance(entry.body, VerificationRequested) and str(without_verdict(entry.ref)) == ref
        ),
        None,
    )


def _answered(answer: Answer, tool: str, who: Verified | None = None) -> str:
    edited = f", as {text_safety.format_line(summary.call(tool, answer.args))}" if answer.args is not None else ""
    unasked = ", and identical calls run without asking" if answer.remember else ""
    comment = f": “{text_safety.format_line(answer.comment, MAX_SHOWN_CHARS)}”" if answer.comment else ""
    return f"{ACTIONS[answer.action].effect}{by(answer, who)}{edited}{unasked}{comment}"


def _ignored(refused: AnswerIgnored, who: Verified | None = None) -> str:
    reason = text_safety.format_line(refused.message, MAX_SHOWN_CHARS)
    return f"an answer{by(refused, who)} was ignored, {refused.reason}: {reason}"


def _reply(number: int, reply: ModelReply) -> str:
    used = reply.usage
    words = [
        f"call {number}",
        reply.model_version,
        f"{used.prompt_tokens:,} + {used.output_tokens:,} tokens" if used and used.total else "",
        f"asked to wrap up: {reply.wrap_up}" if reply.wrap_up else "",
        f"took {terminal.format_span(reply.duration_s)}",
    ]
    return ", ".join(filter(None, words))


def _timing(attempts: "ActivityAttempts | None", ran_s: float | None) -> Iterator[Fact]:
    words = [f"ran {terminal.format_span(ran_s)}"] if ran_s is not None else []
    if attempts and attempts.lasted_s is not None:
        words.append(f"{terminal.format_span(attempts.lasted_s)} after scheduling")
    if attempts:
        words.append(f"attempt {attempts.count or 1}")
    if words:
        yield Fact("timing", ", ".join(words))
    if attempts and attempts.failure_before:
        yield Fact("retry", f"the previous attempt failed: {terminal.describe_failure(attempts.failure_before)}", True)


def list_spending(state: InvocationState) -> list[tuple[str, str]]:
    """Return the work of an invocation so far, as pairs of label and text. What is zero is left out."""
    spent = state.used.spent
    counts = {"model calls": spent.model_calls, "tool calls": spent.tool_calls, "tokens": spent.total_tokens}
    rows = [("active", text_safety.format_duration(spent.working_s))]
    rows += [(label, f"{count:,}" if count else "") for label, count in counts.items()]
    return [(label, text) for label, text in (*rows, ("cost", format_cost(state))) if text]


def format_cost(state: InvocationState) -> str:
    """Format the cost and name models without a price. Return an empty string if the budget neither has prices
    nor limits the cost."""
    if not (state.input and (state.input.budget.prices or state.input.budget.max_cost)):
        return ""
    spent = state.used.spent
    unknown = f", without {', '.join(map(text_safety.format_line, spent.unpriced))}" if spent.unpriced else ""
    return f"{format_money(spent.cost)}{unknown}"


def format_money(amount: float) -> str:
    """Format an amount with four significant digits."""
    return format(Decimal(f"{amount:.4g}"), ",f")


def split_description(call: Call) -> tuple[str, str]:
    """Return the description of a call's tool: its purpose, and the sections of a docstring from `Args:` on."""
    text = call.description or ""
    section = _SECTION.search(text)
    return (text[: section.start()].rstrip(), text[section.start() :].strip()) if section else (text, "")


def hint(call: PendingCall) -> str:
    """Return the hint that the tool gives approvers, or an empty string if it is ADK's default hint."""
    return call.hint if call.hint != default_hint(call.tool) else ""


def format_approvers(call: PendingCall) -> str:
    """Describe in a few words who or what a call is waiting for or, if it has been claimed, who claimed it."""
    if call.claimed_by:
        return f"claimed by {terminal.escape(call.claimed_by)}"
    if call.machine:
        told = f", progress {terminal.format_span(time.time() - call.progress_at)} ago" if call.progress_at else ""
        return f"machine {call.machine}{told}"
    if call.kind == "credential":
        return "a login"
    anyone = "an operator" if call.kind == "unknown" else "anyone"
    if call.policy is None:
        return anyone
    names = ", ".join(terminal.escape(name.removeprefix(ROLE)) for name in call.policy.asked(call.level)) or anyone
    return f"{names} ({len(call.approved_by)} of {call.policy.quorum})" if call.policy.quorum > 1 else names


def describe_status(entry: "InvocationEntry") -> tuple[str, str]:
    """Return an invocation's status, and whose answers an open invocation is waiting for and why it is held.

    The second text continues the first one.
    """
    own = [format_approvers(call) for call in entry.pending]
    below = [f"{format_approvers(call)} in {terminal.escape(call.agent)}" for call in entry.called_pending]
    names, held = ", ".join(dict.fromkeys((*own, *below))), format_holds(entry)
    return entry.status.replace("_", " "), (f" for {names}" if names else "") + (f", {held}" if held else "")


def format_holds(entry: "InvocationEntry") -> str:
    """Return why an invocation is held, or an empty string if it is not held."""
    if not entry.holds:
        return ""
    reason = str(entry.holds[0].get("reason"))
    return terminal.HOLDS.get(reason, terminal.escape(reason))


def describe_retry(retry: "PendingRetry", log: Log | None, now: float, *, soon_s: float = 5.0) -> str:
    """Describe an activity that is being retried in one line.

    The line has the number of failures, the next attempt and the reason. If the activity has not failed, it says since
    when the activity has been waiting for a worker. An attempt that was due at most `soon_s` seconds ago counts as
    running.
    """
    if not retry.failed:
        since = terminal.format_time(retry.next_at or now, now=now)
        return (
            f"{_name_subject(retry, log)} has been waiting since {since} for a worker that polls {retry.task_queue!r}."
        )
    times = {1: "once", 2: "twice"}.get(retry.failed, f"{retry.failed} times")
    if retry.next_at is not None and retry.next_at > now:
        next_attempt = f"next attempt at {terminal.format_time(retry.next_at, now=now)}"
    elif retry.next_at is None or now - retry.next_at <= soon_s:
        next_attempt = "it is being retried now"
    else:
        next_attempt = (
            f"its next attempt has been waiting for a worker since {terminal.format_time(retry.next_at, now=now)}"
        )
    reason = terminal.describe_failure(retry.failure, retry.task_queue) if retry.failure else "no reason given"
    clipped = terminal.escape(summary.clip(" ".join(reason.split()), MAX_REASON_CHARS))
    return f"{_name_subject(retry, log)} failed {times}; {next_attempt}. {clipped}"


def _name_subject(retry: "PendingRetry", log: Log | None) -> str:
    """Return a name for the tool call, model or activity that is being retried."""
    agent, dot, tool = retry.type.partition(".")
    if dot:
        return f"{terminal.escape(agent)}'s call {terminal.escape(tool)} [{call_id_of(retry.activity)}]"
    if not retry.activity:
        return f"The workflow {terminal.escape(retry.type)} [{terminal.escape(retry.workflow_id)}]"
    if retry.type == HELD_TOOL.name:
        call = log.state.calls.get(call_id_of(retry.activity)) if log else None
        return f"The held call {terminal.escape(call.name) if call else ''} [{call_id_of(retry.activity)}]"
    if retry.type != MODEL.name:
        return f"The activity {retry.type} of {terminal.escape(retry.workflow_id)}"
    runs = log.state.models_in_flight if log else {}
    agent_name = next((run.agent for number, run in runs.items() if str(ModelReplyRef(number)) == retry.activity), None)
    return f"The model of {terminal.escape(agent_name or retry.workflow_id)}"


def list_terms(call: PendingCall, *, options: bool = True) -> Iterator[tuple[str, str]]:
    """Yield who claimed a call, if anyone, and the terms of its approval policy, each with a label.

    With `options`, name the CLI options that satisfy the requirements.
    """
    if call.claimed_by:
        yield "claimed", f"by {terminal.escape(call.claimed_by)}"
    policy = call.policy
    if policy is None:
        return
    anyone = "an operator" if call.kind == "unknown" else "anyone"
    people = ", ".join(terminal.escape(name) for name in policy.asked(call.level)) or anyone
    yield "approver", f"{people}{', after an escalation' if call.level else ''}"
    if policy.not_requester:
        names = ", ".join(call.verified_requesters or (call.requester or call.user_id, *call.joined_requesters))
        note = "" if call.requesters else " (not verified, so nobody can approve)"
        yield "excluded", f"{terminal.escape(names)}, the requester{note}"
    if policy.quorum > 1:
        voted = f"; so far {', '.join(map(terminal.escape, call.approved_by))}" if call.approved_by else ""
        yield "quorum", f"{policy.quorum} approvals{voted}"
    needs = (("a verified identity", "--token-file", policy.must_verify), ("a comment", "--comment", policy.comment))
    if needed := [f"{text} ({option})" if options else text for text, option, is_needed in needs if is_needed]:
        yield "requires", ", ".join(needed)
    if policy.actions is not None:
        yield "actions", ", ".join(policy.actions)


def needs_comment(call: PendingCall, row: ActionSpec = ACTIONS["approve"]) -> bool:
    """Return whether an answer to a call requires a comment."""
    return row.needs_comment or (row.decides and call.policy is not None and call.policy.comment)


def format_waiting_time(call: PendingCall) -> str:
    """Return how long a call has been pending, such as `36 h`."""
    return terminal.format_span(time.time() - call.requested_at)


def format_time_left(call: PendingCall) -> str:
    """Return how much time is left to answer a call, such as `36 h`, or `passed` after the deadline."""
    seconds = call.deadline - time.time()
    return terminal.format_span(seconds) if seconds > 0 else "passed"
