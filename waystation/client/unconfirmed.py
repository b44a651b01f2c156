"""What it means that an answer was refused, came too late, or that nobody confirmed it."""

import asyncio
import time

from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from waystation.core import approval, errors, ids
from waystation.core.answer import parse_answer
from waystation.core.log import Log
from waystation.core.payload import JsonObject, encode


def unconfirmed(error: Exception) -> BaseException:
    """Return `error`, unless whoever waited was told to stop waiting: the SDK reports both alike."""
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else error


def overtaken(error: WorkflowUpdateFailedError) -> bool:
    """Whether the invocation ended while an answer was looked into: the server says so, and nothing of the answer."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == "AcceptedUpdateCompletedWorkflow"


def refusal(error: WorkflowUpdateFailedError) -> Exception:
    """Return why a workflow refused an answer."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        if isinstance(kind, type) and issubclass(kind, errors.AnswerRefused):
            return kind(cause.message)
        return errors.AnswerRefused(cause.message)
    return error


def too_late(log: Log, answer: JsonObject) -> errors.AnswerRefused:
    """Return why an answer to an invocation that is over does not count."""
    given = parse_answer(encode(answer))
    try:
        call = approval.check(log, given, time.time())
    except errors.AnswerRefused as refused:
        found = log.calls.get(ids.requesting_call(given.function_call_id))
        if found is None or found.expired:
            return refused
        if found.answer:  # whoever reads the history may know, whoever they are
            return refused if isinstance(refused, errors.DigestMismatch) else approval.standing(found)
        call = found
    over = log.ended.status.replace("_", " ") if log.ended else "over"
    return errors.UnknownCall(f"Call {call.id!r} of {log.invocation_id!r} waits no more: the invocation is {over}.")
