"""Signs of life for the server while a tool or a model works.

Without them a lost worker is noticed only when the time is up, and a cancellation never arrives.
"""

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from temporalio import activity

INTERVAL_S = 1.0
"""Also how soon a running tool hears that it was cancelled. Quick tools end before the first beat."""
NEWS_INTERVAL_S = 0.1
"""How soon after a beat one with news may follow; the first comes at once."""


class Heart:
    """Beats in the background until it is stopped, and at once when there is something to tell."""

    def __init__(self) -> None:
        timeout = activity.info().heartbeat_timeout
        self._interval = min(INTERVAL_S, timeout.total_seconds() / 3) if timeout else INTERVAL_S
        self._loop = asyncio.get_running_loop()
        # Of this activity; whoever has news may be in a thread that knows nothing of it.
        self._context = contextvars.copy_context()
        self._details: Callable[[], object] | None = None
        self._beaten_at = float("-inf")
        self._hurries = False
        self._stopped = False
        # Not a task: this costs nothing for a tool that is done before the first beat.
        self._timer = self._after(self._interval)

    def tell(self, details: Callable[[], object]) -> None:
        """Beat soon, and have this and all later beats say what `details` returns then. From any thread."""
        self._details = details
        if not self._hurries:
            self._hurries = True
            self._loop.call_soon_threadsafe(self._hurry, context=self._context)

    def stop(self) -> None:
        """Beat no more."""
        self._stopped = True
        self._timer.cancel()

    def _hurry(self) -> None:
        if not self._stopped:
            self._timer.cancel()
            self._timer = self._after(self._beaten_at + NEWS_INTERVAL_S - self._loop.time())

    def _after(self, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, seconds), self._beat, context=self._context)

    def _beat(self) -> None:
        self._hurries = False
        self._beaten_at = self._loop.time()
        activity.heartbeat(*([self._details()] if self._details else []))
        self._timer = self._after(self._interval)


@contextmanager
def beating() -> Iterator[Heart]:
    """Heartbeat in the background for as long as the block runs."""
    heart = Heart()
    try:
        yield heart
    finally:
        heart.stop()
