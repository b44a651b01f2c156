"""One call as its page shows it: how it stands, what it is, who may answer, and what happened to it."""

import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from temporalio.service import RPCError, RPCStatusCode

from waystation.client import AgentClient, Invocation
from waystation.core import ids
from waystation.core.answer import Action, Answer, PendingCall, usual_hint
from waystation.core.approval import allowed
from waystation.core.authority import check_authority, check_claim
from waystation.core.call import CallState
from waystation.core.errors import ForeignHistory, NotAllowed, StoreFailed
from waystation.core.log import Log
from waystation.core.payload import encode
from waystation.core.policy import Verified
from waystation.core.wire import WORKFLOW
from waystation.presentation import terminal, text_safety
from waystation.presentation.call_history import MAX_SAID, by
from waystation.web.streams import Refused, unreachable

SAID = 8
"""Lines of the conversation beside a call."""
Standing = Literal["open", "decided", "expired", "closed"]


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found of a call."""

    invocation: Invocation
    log: Log
    state: CallState
    pending: PendingCall
    standing: Standing

    @property
    def id(self) -> str:
        """What names the call in the whole namespace."""
        return self.pending.approval_id

    @property
    def decision(self) -> str:
        """Who decided what and when; or why nobody can any more."""
        match self.standing:
            case "open":
                return "This call waits for an answer."
            case "expired":
                return "Nobody answered before the deadline. The call was not approved."
            case "decided" if self.state.answer:
                at = f", {terminal.clock(self.state.answered_at, zone=True)}" if self.state.answered_at else ""
                answer = self.state.answer
                return f"This call was {terminal.DONE[answer.action]}{by(answer, self.state.decided_by)}{at}."
            case _:
                over = self.log.ended.status.replace("_", " ") if self.log.ended else "going on without it"
                return f"This call waits no more: the invocation is {over}."


async def looked_up(client: AgentClient, approval_id: str) -> Looked:
    """Return a call, whether or not it still waits. No worker has to run.

    Raises:
        Refused: There is no such call, or the server does not say.
    """
    unknown = Refused(
        HTTPStatus.NOT_FOUND,
        "UnknownCall",
        f"No call of the id {text_safety.line(approval_id)!r} waits or has waited here. It may be older than what the "
        "server keeps, or the link was not copied whole.",
    )
    try:
        invocation_id, call_id = ids.approved_call(approval_id)
    except ValueError:
        raise unknown from None
    invocation = client.invocation(invocation_id)
    try:
        if (await invocation.handle.describe()).workflow_type != WORKFLOW:
            raise unknown
        log = await invocation.log()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise unknown from None
        raise unreachable(error) from None
    except StoreFailed as error:
        raise unreachable(error) from None
    except ForeignHistory:
        raise unknown from None
    open_now = {call.function_call_id: call for call in log.pending()} if not log.ended else {}
    state = log.calls.get(ids.requesting_call(call_id))
    if state is None or not state.ever_waits or log.input is None:
        raise unknown
    pending = open_now.get(state.id)
    if pending is not None:
        past = pending.deadline <= time.time()
        return Looked(invocation, log, state, pending, "expired" if past else "open")
    was = state.pending(invocation_id, log.input.user_id, log.input.session_id, log.input.requester)
    if state.asked:
        was = was.model_copy(update={"kind": state.asked})
    standing: Standing = "expired" if state.expired else "decided" if state.answer else "closed"
    return Looked(invocation, log, state, was, standing)


def decisions(state: CallState) -> tuple[Action, ...]:
    """Return which decisions the call takes, in the order in which a page offers them."""
    possible = allowed(state)
    # What was asked for in a form is not answered by a mere yes.
    unfit = {"approve"} if state.call.response_schema and state.gate != "waiting" else set()
    order: tuple[Action, ...] = ("approve", "reject", "edit", "respond", "progress")
    return tuple(action for action in order if action in possible and action not in unfit)


def around(state: CallState) -> tuple[Action, ...]:
    """Return what else can be done to it: taken on or given back, let through or closed by an operator."""
    first: Action = "release" if state.claimed_by else "claim"
    order: tuple[Action, ...] = (first, "view", "waive", "cancel")
    return tuple(action for action in order if action in allowed(state))


def refused_to(looked: "Looked", action: Action, name: str, who: Verified | None) -> str:
    """Return why somebody may not do that to the call; empty when they may."""
    answer = Answer(function_call_id=looked.state.id, action=action, by=name or None)
    given = looked.log.input
    try:
        check_authority(looked.state, answer, who, (given.requester or given.user_id) if given else "")
        check_claim(looked.state, answer, who)
    except NotAllowed as refused:
        return str(refused)
    return ""


def hint(call: PendingCall) -> str:
    """Return what the tool's author has people read, when that is more than the usual words."""
    return call.hint if call.hint != usual_hint(call.tool) else ""


def size(value: object) -> str:
    """Return how large a value is."""
    count = len(encode(value))
    return f"{count:,} bytes"


def conversation(log: Log) -> list[terminal.Line]:
    """Return the last lines of what was said."""
    lines: list[terminal.Line] = []
    for event in reversed(log.events):
        said = [line for line in terminal.lines_of(event) if line.kind in ("text", "error")]
        lines = [terminal.Line(line.kind, line.who, text_safety.line(line.text, MAX_SAID)) for line in said] + lines
        if len(lines) >= SAID:
            break
    return lines[-SAID:]


def asked(call: PendingCall) -> list[str]:
    """Return who may answer, in sentences."""
    policy = call.policy
    if policy is None:
        return ["Anybody who reaches this server may answer."]
    who = [text_safety.line(each) for each in policy.asked(call.level)]
    said = [f"May answer: {', '.join(who)}." if who else "Anybody may answer."]
    if policy.not_requester:
        said.append("Not whoever the agent works for.")
    if policy.quorum > 1:
        so_far = ", ".join(map(text_safety.line, call.approved_by)) or "nobody"
        said.append(f"{policy.quorum} people have to approve; so far {so_far}. One who rejects ends it.")
    if policy.must_verify:
        said.append("Only answers with a verified identity count.")
    if policy.comment:
        said.append("An answer needs a comment.")
    if call.level:
        said.append(f"Others were asked besides, {call.level} {'times' if call.level > 1 else 'time'} so far.")
    return said
