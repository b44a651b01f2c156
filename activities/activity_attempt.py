"""One attempt of an activity: its heartbeats, and how it fails.

Without heartbeats a lost worker is noticed only when the time is up, and a cancellation never arrives.
"""

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from waystation.core import ForeignHistory, StoreFailed

events = structlog.get_logger("waystation.activities")

INTERVAL_S = 1.0
"""Also how soon a running tool hears that it was cancelled. Quick tools end before the first beat."""
NEWS_INTERVAL_S = 0.1
"""How soon after a beat one with a model's text may follow; the first comes at once."""
TOOL_NEWS_INTERVAL_S = 0.5
"""And one that a tool asks for. Nobody reads what it tells before its next attempt, and fifty tools that beat all the
time would take a sixth of a core of the server at a tenth of a second, and a quarter of one of the worker."""
MAX_FAILURE_CHARS = 500


class Heart:
    """Beats in the background until it is stopped, and at once when there is something to tell."""

    def __init__(self, news_interval_s: float = NEWS_INTERVAL_S) -> None:
        self._news_interval_s = news_interval_s
        timeout = activity.info().heartbeat_timeout
        self._interval = min(INTERVAL_S, timeout.total_seconds() / 3) if timeout else INTERVAL_S
        self._loop = asyncio.get_running_loop()
        # Of this activity; whoever has news may be in a thread that knows nothing of it.
        self._context = contextvars.copy_context()
        self._details: Callable[[], Sequence[object]] = tuple
        self._beaten_at = float("-inf")
        self._hurries = False
        self._stopped = False
        # Not a task: this costs nothing for a tool that is done before the first beat.
        self._timer = self._after(self._interval)

    def tell(self, details: Callable[[], Sequence[object]]) -> None:
        """Beat soon, and have this and all later beats say what `details` returns then. From any thread."""
        self._details = details
        if not self._hurries:
            self._hurries = True
            self._loop.call_soon_threadsafe(self._hurry, context=self._context)

    def hear(self, *details: object) -> None:
        """Take the heartbeat of a tool. From any thread, and however often."""
        self.tell(lambda: details)

    def last(self) -> None:
        """Tell what is not told yet: the activity fails, and its next attempt may be given it."""
        if self._hurries:
            self._beat()

    def stop(self) -> None:
        """Beat no more."""
        self._stopped = True
        self._timer.cancel()

    def _hurry(self) -> None:
        if not self._stopped:
            self._timer.cancel()
            self._timer = self._after(self._beaten_at + self._news_interval_s - self._loop.time())

    def _after(self, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, seconds), self._beat, context=self._context)

    def _beat(self) -> None:
        self._hurries = False
        self._beaten_at = self._loop.time()
        activity.heartbeat(*self._details())
        self._timer = self._after(self._interval)


@contextmanager
def beating(news_interval_s: float = NEWS_INTERVAL_S) -> Iterator[Heart]:
    """Heartbeat in the background for as long as the block runs."""
    heart = Heart(news_interval_s)
    try:
        yield heart
    except BaseException:
        heart.last()
        raise
    finally:
        heart.stop()


def activity_failure(
    event: str, kind: str, text: str, *, retry: bool = False, delay: timedelta | None = None, **fields: str
) -> ApplicationError:
    """Log a failed attempt as `event`, and return the error to raise. Never chain it: histories record causes."""
    info, text = activity.info(), text[:MAX_FAILURE_CHARS]
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
