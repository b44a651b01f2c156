"""Send updates to workflows, and explain why one was not accepted."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.core import approval, errors, ids
from waystation.core.answer import parse_answer
from waystation.core.log import Log
from waystation.core.payload import JsonObject, encode

T = TypeVar("T")

PAUSE_S = 0.2


async def send_when_ready(send: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an update; `send` sends it, each time under the same id.

    A workflow whose last task failed, for instance because its worker was killed, is not ready: the server refuses the
    update and records nothing. It is sent again until the caller gives up.
    """
    while True:
        try:
            return await send()
        except RPCError as error:
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
        await asyncio.sleep(PAUSE_S)


def unless_cancelled(error: Exception) -> BaseException:
    """Return `error`, or a cancellation if the waiting task was cancelled: the SDK reports both alike."""
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else error


def is_invocation_over(error: WorkflowUpdateFailedError) -> bool:
    """Whether the invocation ended while an answer was verified: the server then says nothing about the answer."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == "AcceptedUpdateCompletedWorkflow"


def answer_refusal(error: WorkflowUpdateFailedError) -> Exception:
    """Return why a workflow refused an answer."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        if isinstance(kind, type) and issubclass(kind, errors.AnswerRefused):
            return kind(cause.message)
        return errors.AnswerRefused(cause.message)
    return error


def late_answer_refusal(log: Log, answer: JsonObject) -> errors.AnswerRefused:
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
