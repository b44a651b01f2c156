"""How activities fail: with an entry in the worker's log, and a short text for the history."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from waystation.core.errors import ForeignHistory, StoreFailed

events = structlog.get_logger("waystation.activities")

MAX_TEXT_CHARS = 500


def activity_failure(
    event: str, kind: str, text: str, *, retry: bool = False, delay: timedelta | None = None, **fields: str
) -> ApplicationError:
    """Log a failed attempt as `event`, and return the error to raise. Never chain it: histories record causes."""
    info, text = activity.info(), text[:MAX_TEXT_CHARS]
    about = {"invocation_id": info.workflow_id, "error_type": kind, "problem": text, "attempt": info.attempt}
    events.warning(event, **about, retry=retry, **fields)
    # Benign: it is logged here; the SDK would add a stack trace, and with it content.
    benign = ApplicationErrorCategory.BENIGN
    return ApplicationError(text, type=kind, non_retryable=not retry, next_retry_delay=delay, category=benign)


@contextmanager
def failing_as(
    event: str,
    *,
    final: tuple[type[Exception], ...] = (ForeignHistory,),
    retried: tuple[type[Exception], ...] = (StoreFailed,),
) -> Iterator[None]:
    """Have these errors fail the activity: for good, or so that the server repeats it."""
    try:
        yield
    except (*final, *retried) as error:
        raise activity_failure(event, type(error).__name__, str(error), retry=isinstance(error, retried)) from None
