"""Tells a person what fails and is tried again, and what no worker takes: while it goes on no history says so."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from temporalio.service import RPCError

from waystation.cli.output import Output
from waystation.client import AgentClient
from waystation.core import ids, summary
from waystation.core.log import Log
from waystation.core.wire import MODEL_ACTIVITY
from waystation.history import Retry, fetch_retries
from waystation.presentation import terminal

QUIET_S = 3.0
"""How long nothing may come before the server is asked why."""
SLOW_S = 30.0
"""How often, at the most seldom, it is asked while something is at work that has not failed."""
SOON_S = 5.0
"""What failed once is not told when it is tried again so soon; and so long a worker may take to begin."""
AGAIN_S = 15.0
"""After so long the same is told again, and then each time after twice as long."""
AGAIN_AT_MOST_S = 300.0
MAX_WHY = 300
"""Characters of a reason that are shown."""


class Retrying:
    """Watches over one invocation, or over a session with all of its."""

    def __init__(
        self, client: AgentClient, out: Output, workflow_id: str, *, interrupt: Callable[[], None] = lambda: None
    ) -> None:
        """`interrupt` is called before a line is written."""
        self._client, self._out, self._id, self._interrupt = client, out, workflow_id, interrupt
        self._came = asyncio.Event()
        self._logs: dict[str, Log] = {}
        self._told: dict[tuple[str, str], tuple[float, float]] = {}
        """When each retry is told again, and after how long the next time."""

    def came(self, log: Log | None = None) -> None:
        """Note that something happened, and what is known of an invocation now."""
        if log is not None:
            self._logs[log.invocation_id] = log
        self._came.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look out as long as this is open."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def look(self, pause: float = QUIET_S) -> float | None:
        """Tell what is to be told now, and return after how long to look again: None when nothing is at work.

        `pause` is how long it was before this look.
        """
        found, at_work = await fetch_retries(self._client.temporal, self._id)
        now = time.time()
        failing = [retry for retry in found if _matters(retry, now)]
        for retry in failing:
            due, longer = self._told.get((retry.workflow_id, retry.activity), (now, AGAIN_S))
            if now >= due:
                self._interrupt()
                self._out.remark(told(retry, self._logs.get(retry.workflow_id), now))
                self._told[retry.workflow_id, retry.activity] = now + longer, min(2 * longer, AGAIN_AT_MOST_S)
        if failing:
            return max(min(self._told[each.workflow_id, each.activity][0] for each in failing) - now, QUIET_S)
        return QUIET_S if found else min(2 * pause, SLOW_S) if at_work else None

    async def _watch(self) -> None:
        pause: float | None = None
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._came.wait()
                self._came.clear()
                pause = QUIET_S
            except TimeoutError:
                assert pause is not None
                try:
                    pause = await self.look(pause)
                except RPCError:  # whoever follows is told when the server is gone
                    pause = SLOW_S


def told(retry: Retry, log: Log | None, now: float) -> str:
    """Return in one line what is tried again, how often it failed, when the next try comes, and why; or since when what
    was never tried has waited."""
    if not retry.failed:
        since = terminal.clock(retry.next_at or now, now=now)
        return f"{_what(retry, log)} has waited since {since} for a worker that polls {retry.task_queue!r}."
    times = {1: "once", 2: "twice"}.get(retry.failed, f"{retry.failed} times")
    # Of a tool's some are kept for when workers are lost.
    most = f" ({retry.most} tries at most)" if retry.type == MODEL_ACTIVITY and retry.most else ""
    if retry.next_at is not None and retry.next_at > now:
        then = f"next try at {terminal.clock(retry.next_at, now=now)}"
    elif retry.next_at is None or now - retry.next_at <= SOON_S:
        then = "it is being tried again now"
    else:
        then = f"its next try has waited for a worker since {terminal.clock(retry.next_at, now=now)}"
    why = (
        summary.clip(" ".join(terminal.failure(retry.failure).split()), MAX_WHY) if retry.failure else "no reason given"
    )
    return f"{_what(retry, log)} failed {times}{most}; {then}. {terminal.safe(why)}"


def _matters(retry: Retry, now: float) -> bool:
    return retry.failed > 1 or (retry.next_at is not None and abs(retry.next_at - now) > SOON_S)


def _what(retry: Retry, log: Log | None) -> str:
    """Return the name of what was tried, or is to be, in the words of agents."""
    agent, dot, tool = retry.type.partition(".")
    if dot:
        return f"{terminal.safe(agent)}'s call {terminal.safe(tool)} [{ids.performed(retry.activity)[0]}]"
    if retry.type != MODEL_ACTIVITY:
        return f"The activity {retry.type} of {terminal.safe(retry.workflow_id)}"
    works = log.models_at_work if log else {}
    asking = next((work.agent for number, work in works.items() if ids.model_replied(number) == retry.activity), None)
    return f"The model of {terminal.safe(asking or retry.workflow_id)}"
