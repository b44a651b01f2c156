"""What it means that an update was refused, or that nobody confirmed it."""

import asyncio

from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from waystation.core import errors


def unconfirmed(error: Exception) -> BaseException:
    """Return `error`, unless whoever waited was told to stop waiting: the SDK reports both alike."""
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else error


def refusal(error: WorkflowUpdateFailedError) -> Exception:
    """Return why a workflow refused an answer."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        if isinstance(kind, type) and issubclass(kind, errors.AnswerRefused):
            return kind(cause.message)
        return errors.AnswerRefused(cause.message)
    return error
