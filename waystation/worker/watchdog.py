"""Detect tools that block a worker's event loop, and workers that use too much memory.

While its event loop is blocked, a worker cannot send heartbeats, finish other tools or stop on SIGTERM. The watchdog
therefore logs the blocking tool. If it has a limit, it also interrupts the tool and makes the worker drain and exit, so
that a supervisor replaces it.
"""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Self

import structlog
from temporalio import activity
from temporalio.client import Client

from waystation.activities import EventLoopBlocked, blocked_failure, current_activity

log = structlog.get_logger("waystation.worker")

EXIT_BLOCKED = 11
EXIT_MEMORY = 12
TICK_S = 0.5
REPORT_AFTER_S = 2.0
"""A tool that has blocked the event loop for this many seconds is logged."""
GRACE_S = 5.0
"""Seconds that an interrupted tool has to return before the process exits without draining."""
FROZEN_S = 300
"""Seconds beyond `limit_s` after which a process in which no Python code can run prints all stacks and exits with 1.
The value is high because it also applies to a process that was suspended for this long, for example with Ctrl-Z."""
STACK_LIMIT = 12
REPORT_LIMIT_S = 5.0


class Watchdog:
    """Watches the running event loop and the memory of this process during a `with` block.

    All times are counted in intervals in which the watching code ran, so a process that was suspended is not mistaken
    for a blocked one.
    """

    def __init__(
        self, client: Client, *, limit_s: float, max_rss: int | None, request_exit: Callable[[int], None]
    ) -> None:
        """Configure the watchdog. Create it in the thread of the event loop.

        Args:
            client: Used to report an activity as failed if it cannot be interrupted.
            limit_s: How long a tool may block the event loop, in seconds, or 0 to only log it. Python can interrupt a
                tool only in the main thread; in another thread, the process exits without draining.
            max_rss: Maximum resident memory in bytes, or None for no limit.
            request_exit: Makes the worker drain and then exit with this code. Called in the event loop.
        """
        self._client, self._limit_s, self._max_rss, self._request_exit = client, limit_s, max_rss, request_exit
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        self._closed = threading.Event()
        self._ticked = False
        self._alarms = 0
        """Number of alarms since the last tick. The first one is ignored: it may be overdue only because the process
        was suspended, for example by SIGSTOP."""

    def __enter__(self) -> Self:
        if self._can_interrupt:
            signal.signal(signal.SIGALRM, self._interrupt)
        self._tick()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed.set()
        self._set_alarm(0)
        if self._limit_s:
            faulthandler.cancel_dump_traceback_later()

    @property
    def _can_interrupt(self) -> bool:
        return bool(self._limit_s) and hasattr(signal, "SIGALRM") and self._thread is threading.main_thread()

    def _tick(self) -> None:
        """Record that the event loop is not blocked, and restart the timers that fire if it blocks from now on."""
        if self._closed.is_set():
            return
        self._ticked, self._alarms = True, 0
        self._set_alarm(max(self._limit_s - TICK_S, TICK_S))
        if self._limit_s:
            with suppress(AttributeError, OSError, ValueError):  # standard error is not a file
                # Unlike the thread, this also works while native code holds the interpreter lock.
                faulthandler.dump_traceback_later(self._limit_s + FROZEN_S, exit=True)
        self._loop.call_later(TICK_S / 2, self._tick)

    def _set_alarm(self, seconds: float) -> None:
        if self._can_interrupt:
            signal.setitimer(signal.ITIMER_REAL, seconds, TICK_S)

    def _interrupt(self, _signum: int, _frame: object) -> None:
        """On the second alarm, raise an exception in the activity that blocks the event loop.

        The exception reaches it because signal handlers run inside the interrupted code.
        """
        self._alarms += 1
        if self._alarms > 1 and (info := current_activity.get()):
            self._loop.call_soon_threadsafe(self._report_interrupted, info)
            raise EventLoopBlocked(self._limit_s)

    def _report_interrupted(self, info: activity.Info) -> None:
        log.error("event_loop.interrupted", **_describe(info), blocked_s=self._limit_s)
        self._request_exit(EXIT_BLOCKED)

    def _watch(self) -> None:
        blocked_s = 0.0
        while not self._closed.wait(TICK_S):
            blocked_s, self._ticked = (0 if self._ticked else blocked_s + TICK_S), False
            if blocked_s == REPORT_AFTER_S:
                log.warning("event_loop.blocked", **_describe(self._find_activity()), frames=self._frames())
            if self._limit_s and blocked_s >= self._limit_s + GRACE_S:
                self._abandon(blocked_s)
            if self._max_rss and (rss := read_rss()) > self._max_rss:
                log.error("memory.exceeded", rss_mib=rss >> 20, max_rss_mib=self._max_rss >> 20)
                self._loop.call_soon_threadsafe(self._request_exit, EXIT_MEMORY)
                self._max_rss = None

    def _find_activity(self) -> activity.Info | None:
        """Return the activity that blocks the event loop, or None if it is not known."""
        task: Any = asyncio.current_task(self._loop)
        get_context = getattr(task, "get_context", None)  # new in Python 3.12
        contexts = [get_context()] if get_context else gc.get_referents(task)
        return next((value.get(current_activity) for value in contexts if isinstance(value, Context)), None)

    def _frames(self) -> list[str]:
        frames = traceback.StackSummary.extract(
            traceback.walk_stack(sys._current_frames().get(self._thread.ident or 0)),
            limit=STACK_LIMIT,
            lookup_lines=False,
        )
        return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames)]

    def _abandon(self, blocked_s: float) -> None:
        """Report the blocking activity as failed, then exit without draining, because it cannot be interrupted."""
        info = self._find_activity()
        log.critical("event_loop.abandoned", **_describe(info), blocked_s=blocked_s, frames=self._frames())
        if info:
            with suppress(Exception):
                asyncio.run(asyncio.wait_for(self._fail(info, blocked_s), REPORT_LIMIT_S))
        sys.stderr.flush()
        os._exit(EXIT_BLOCKED)

    async def _fail(self, info: activity.Info, blocked_s: float) -> None:
        handle = self._client.get_async_activity_handle(task_token=info.task_token)
        await handle.fail(blocked_failure(info, blocked_s))


def _describe(info: activity.Info | None) -> dict[str, Any]:
    if info is None:
        return {}
    agent, _, name = info.activity_type.rpartition(".")
    named = {"agent": agent, "tool": name} if agent else {"activity": name}
    return {
        **named,
        "activity_id": info.activity_id,
        "invocation_id": info.workflow_id,
        "attempt": info.attempt,
    }


def read_rss() -> int:
    """Return the resident memory of this process in bytes: on macOS its maximum so far, and on Windows always 0."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        if sys.platform == "win32":
            return 0
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
