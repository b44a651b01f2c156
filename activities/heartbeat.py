"""Signs of life for the server while a tool or a model works.

Without them a lost worker is noticed only when the time is up, and a cancellation never arrives.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import activity

INTERVAL_S = 1.0
"""Also how soon a running tool hears that it was cancelled. Quick tools end before the first beat."""


@contextmanager
def beating() -> Iterator[None]:
    """Heartbeat in the background for as long as the block runs."""
    timeout = activity.info().heartbeat_timeout
    interval = min(INTERVAL_S, timeout.total_seconds() / 3) if timeout else INTERVAL_S
    loop = asyncio.get_running_loop()

    # Not a task: this costs nothing for a tool that is done before the first beat.
    timers = [loop.call_later(interval, lambda: beat())]

    def beat() -> None:
        activity.heartbeat()
        timers[0] = loop.call_later(interval, beat)

    try:
        yield
    finally:
        timers[0].cancel()
