"""How a policy reads: who may answer a call, how many have to, and what else an answer needs."""

import time
from collections.abc import Iterator

from waystation.core import ROLE, PendingCall
from waystation.presentation import terminal


def who(call: PendingCall) -> str:
    """Return in a few words who may answer, or has taken the call on."""
    if call.claimed_by:
        return f"taken on by {terminal.safe(call.claimed_by)}"
    if call.kind == "credential":
        return "a login"
    if call.policy is None:
        return "anybody"
    asked = ", ".join(terminal.safe(name.removeprefix(ROLE)) for name in call.policy.asked(call.level)) or "anybody"
    voted = f" ({len(call.approved_by)} of {call.policy.quorum})" if call.policy.quorum > 1 else ""
    return f"{asked}{voted}"


def terms(call: PendingCall) -> Iterator[tuple[str, str]]:
    """Yield what a policy asks of those who answer, each with a label."""
    if call.claimed_by:
        yield "taken on", f"by {terminal.safe(call.claimed_by)}"
    policy = call.policy
    if policy is None:
        return
    people = ", ".join(terminal.safe(name) for name in policy.asked(call.level))
    if people:
        yield "may", f"{people}{', after an escalation' if call.level else ''}"
    if policy.not_requester:
        yield "may not", f"{terminal.safe(call.requester or call.user_id)}, for whom it is asked"
    if policy.quorum > 1:
        voted = f"; so far {', '.join(map(terminal.safe, call.approved_by))}" if call.approved_by else ""
        yield "needs", f"{policy.quorum} people who approve{voted}"
    needed = {"a verified identity (--token-file)": policy.must_verify, "a comment (--comment)": policy.comment}
    wanted = [text for text, is_needed in needed.items() if is_needed]
    if wanted:
        yield "answer", f"with {', '.join(wanted)}"
    if policy.actions is not None:
        yield "takes", ", ".join(policy.actions)


def needs_comment(call: PendingCall) -> bool:
    """Whether an answer needs a comment."""
    return call.policy is not None and call.policy.comment


def waited(call: PendingCall) -> str:
    """Return for how long a call has waited."""
    return terminal.span(time.time() - call.requested_at)


def left(call: PendingCall) -> str:
    """Return how long it may still be answered."""
    seconds = call.deadline - time.time()
    return terminal.span(seconds) if seconds > 0 else "passed"
