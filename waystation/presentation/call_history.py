"""What happened to one call, as people read it."""

from collections.abc import Mapping

from waystation.core import (
    Answer,
    AnswerCounted,
    AnswerIgnored,
    AnswerReviewed,
    AnswerSubmitted,
    CallLost,
    CallReturned,
    CallState,
    DeadlinePassed,
    Entry,
    Log,
    NoticeDue,
    Notified,
    Verified,
    ids,
    summary,
    without_verdict,
)
from waystation.presentation import terminal, text_safety

MAX_SAID = 600
"""Characters that are shown of what somebody said."""

_OCCASIONS: dict[str, str] = {
    "asked": "that it waits",
    "reminder": "that it still waits",
    "escalation": "that it waits for others, too",
    "decided": "that it is decided",
    "expired": "that nobody answered in time",
}


def by(answer: Answer | AnswerIgnored, who: Verified | None = None) -> str:
    """Return who answered, and whether anybody vouches for it."""
    if who is not None:
        return f" by {text_safety.line(who.subject)} (identity verified)"
    return f" by {text_safety.line(answer.by)} (as they say)" if answer.by else ""


def decision(call: CallState) -> str:
    """Return in a few words what became of a call that people were asked of; nothing as long as it waits."""
    if call.answer:
        return f"{terminal.DONE[call.answer.action]}{by(call.answer, call.decided_by)}"
    return "nobody answered in time" if call.expired else ""


def answered(answer: Answer, tool: str, who: Verified | None = None) -> str:
    """Return what an answer does to a call of a tool, and who gave it."""
    edited = f", as {text_safety.line(summary.call(tool, answer.args))}" if answer.args is not None else ""
    unasked = ", and calls like it run unasked" if answer.remember else ""
    comment = f": “{text_safety.line(answer.comment, MAX_SAID)}”" if answer.comment else ""
    return f"{terminal.DONE[answer.action]}{by(answer, who)}{edited}{unasked}{comment}"


def submitted(answer: Answer) -> str:
    """Return that an answer arrived, which counts only once it is verified."""
    return f"“{answer.action}” was sent{by(answer)}, and is looked into"


def ignored(refused: AnswerIgnored, who: Verified | None = None) -> str:
    """Return that an answer did not count, and why."""
    by_whom = by(refused, who)
    return f"an answer{by_whom} did not count, {refused.reason}: {text_safety.line(refused.message, MAX_SAID)}"


def story(log: Log, state: CallState) -> list[tuple[float, str]]:
    """Return what happened to a call: when, and what. Entries that a run before has summed up are not among it."""
    sent = {
        str(without_verdict(each.ref)): each.body.answer
        for each in log.entries
        if isinstance(each.body, AnswerSubmitted)
    }
    over = {each.body.ref for each in log.entries if isinstance(each.body, AnswerReviewed)}
    told = [
        (entry.time, text)
        for entry in log.entries
        # What has been looked into is told once: by what became of it.
        if not (isinstance(entry.body, AnswerSubmitted) and str(without_verdict(entry.ref)) in over)
        if (text := _event_of(entry, state, sent))
    ]
    if state.requested_at is not None:
        told.append((state.requested_at, "began to wait for a person"))
    # Stable, so that what came at one time stays in its order.
    return sorted(told, key=lambda each: each[0])


def _event_of(entry: Entry, state: CallState, sent: Mapping[str, Answer]) -> str:
    """Return what an entry did to a call; empty if nothing."""
    match entry.body:
        case AnswerCounted(call_id, answer) if call_id == state.id:
            return answered(answer, state.name)
        case AnswerSubmitted(call_id, answer) if call_id == state.id:
            return submitted(answer)
        case AnswerReviewed(ref, review, refused) if ref in sent and sent[ref].function_call_id == state.id:
            return ignored(refused, review.who) if refused else answered(sent[ref], state.name, review.who)
        case AnswerIgnored(_, _, call_id) as refused if call_id and ids.requesting_call(call_id) == state.id:
            return ignored(refused)
        case NoticeDue(call_id, number) if call_id == state.id and state.policy:
            notices = state.policy.notices()
            further = number < len(notices) and notices[number].escalates
            return f"nobody had answered: {'others were asked, too' if further else 'a reminder was due'}"
        case Notified(call_id, occasion, report) if call_id == state.id:
            failed = f", but not by {', '.join(map(text_safety.line, report.failed))}" if report.failed else ""
            by_way = ", ".join(map(text_safety.line, report.delivered)) or "nothing"
            return f"people were told {_OCCASIONS.get(occasion.rstrip('0123456789'), 'of it')}, by {by_way}{failed}"
        case DeadlinePassed(call_id) if call_id == state.id:
            return "the deadline passed without an answer"
        case CallReturned(outcome) if outcome.function_call_id == state.id:
            took = f" after {text_safety.duration(outcome.duration_s)}" if outcome.duration_s >= 0.05 else ""
            failed = f", {text_safety.line(outcome.error_type)}" if outcome.error_type else ""
            return f"the tool returned{took}{failed}"
        case CallLost(call_id, failure) if call_id == state.id:
            return f"the tool gave no report: {failure.kind.replace('_', ' ')}"
        case _:
            return ""
