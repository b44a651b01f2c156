"""Turn what an activity or a child returned into a log entry. Workflow and readers share this; nothing here raises."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from waystation.core import ids
from waystation.core.budget import Used
from waystation.core.continued import ChildOutcome
from waystation.core.entry import (
    AnswerReviewed,
    Began,
    Body,
    CallLost,
    CallReturned,
    ChildReturned,
    Failure,
    ModelLost,
    ModelReplied,
    Notified,
    Refused,
    ScopesTold,
)
from waystation.core.errors import InvalidInput
from waystation.core.event import parts_of
from waystation.core.model_call import ModelReply
from waystation.core.notice import NoticeReport
from waystation.core.payload import decode
from waystation.core.review import Review
from waystation.core.scope import ScopeReport
from waystation.core.tool_call import ToolOutcome
from waystation.core.wire import WORKFLOW, InvocationResult, parse_input


def _unreadable(what: str) -> Failure:
    return Failure(kind="error", error_type="EngineFault", message=f"The recorded {what} cannot be read.")


def beginning(payloads: Sequence[bytes], *, child: bool) -> Began | Refused:
    """Return the first entry of an invocation, given the arguments of its workflow.

    Only a workflow that starts it as its `child` can say which calls people have allowed to run unasked, and which
    conversation it belongs to.
    """
    try:
        if len(payloads) != 1:
            raise InvalidInput(f"{WORKFLOW} takes one argument, an object; {len(payloads)} were given.")
        given = parse_input(payloads[0])
        if not child and (given.standing or given.session):
            given = given.model_copy(update={"standing": (), "session": None})
        return Began(given)
    except InvalidInput as error:
        return Refused(str(error))


def model_reply(number: int, data: bytes) -> ModelReplied | ModelLost:
    """Return the entry for the result of a model activity."""
    try:
        reply = ModelReply.model_validate(decode(data))
    except (ValidationError, ValueError):
        return ModelLost(number, _unreadable("reply of the model"))
    if len(parts_of(reply.content, "functionCall")) != len(reply.calls):
        return ModelLost(number, _unreadable("reply of the model"))
    return ModelReplied(number, reply)


def tool_outcome(activity_id: str, data: bytes) -> CallReturned | CallLost:
    """Return the entry for the result of a tool activity."""
    call_id, run = ids.performed(activity_id)
    try:
        outcome = ToolOutcome.model_validate(decode(data))
    except (ValidationError, ValueError):
        return CallLost(call_id, _unreadable("outcome of the tool"), run)
    if outcome.function_call_id != call_id:
        outcome = outcome.model_copy(update={"function_call_id": call_id})
    return CallReturned(outcome, run)


def lost_call(activity_id: str, failure: Failure) -> CallLost:
    """Return the entry for a tool activity or a child that gave no result."""
    call_id, run = ids.performed(activity_id)
    return CallLost(call_id, failure, run)


def child_result(function_call_id: str, data: bytes) -> ChildReturned | CallLost:
    """Return the entry for the result of a child invocation."""
    try:
        return ChildReturned(function_call_id, InvocationResult.model_validate(decode(data)))
    except (ValidationError, ValueError):
        return CallLost(function_call_id, _unreadable("result of the agent"))


def used(details: Sequence[Any]) -> Used | None:
    """Return what a called agent says that it used, given the details of the error with which it failed."""
    try:
        return Used.model_validate(details[0])
    except (IndexError, ValidationError):
        return None  # it failed otherwise, or ran before agents said so


def scopes_told(activity_id: str, data: bytes) -> ScopesTold:
    """Return the entry for the report on a delivery to scopes."""
    try:
        report = ScopeReport.model_validate(decode(data))
    except (ValidationError, ValueError):
        return ScopesTold(ids.delivered(activity_id), failure=_unreadable("report on state"))
    return ScopesTold(ids.delivered(activity_id), report.refused)


def child_outcome(function_call_id: str, data: bytes) -> ChildReturned | CallLost:
    """Return the entry for what an activity says of a child that an earlier run started."""
    try:
        outcome = ChildOutcome.model_validate(decode(data))
        if outcome.failure:
            return CallLost(function_call_id, outcome.failure)
        return ChildReturned(function_call_id, InvocationResult.model_validate(outcome.result))
    except (ValidationError, ValueError):
        return CallLost(function_call_id, _unreadable("result of the agent"))


def review(data: bytes) -> Review:
    """Return what an activity found out about an answer."""
    try:
        return Review.model_validate(decode(data))
    except (ValidationError, ValueError):
        return review_lost(_unreadable("review of the answer"))


def review_lost(failure: Failure) -> Review:
    """Return what is known of an answer when nobody could look into it."""
    why = f": {failure.message}" if failure.message else f" ({failure.error_type or failure.kind})."
    return Review(refused="NotAllowed", message=f"The answer could not be looked into{why} It may be sent again.")


def notified(activity_id: str, data: bytes) -> Notified:
    """Return the entry for the report on a notice."""
    try:
        return Notified(*ids.notified(activity_id), NoticeReport.model_validate(decode(data)))
    except (ValidationError, ValueError):
        return notice_lost(activity_id, _unreadable("report on a notice"))


def notice_lost(activity_id: str, failure: Failure) -> Notified:
    """Return the entry for a notice of which nobody knows whether it was delivered."""
    return Notified(*ids.notified(activity_id), NoticeReport(failed={"": failure.error_type or failure.kind}))


def reference(activity_id: str, body: Body) -> str:
    """Return the reference of a result.

    It names the attempt that made it: a process that made another attempt's result must not take its own for it.
    """
    match body:
        case ModelReplied():
            return ids.result(activity_id, body.reply.mark)
        case CallReturned():
            return ids.result(activity_id, body.outcome.mark)
        case AnswerReviewed():
            made = ids.result(activity_id, body.review.mark)
            return ids.ignored(made) if body.refused else made
        case Notified():
            return ids.result(activity_id, body.report.mark)
        case _:
            return activity_id
