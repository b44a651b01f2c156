"""What a session has read for it by activities: what an invocation did, and its own transcript."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

from waystation.core.payload import decode
from waystation.core.session_data import Collected, CollectInput, KeptTranscript, SessionArchiveInput
from waystation.core.settings import ActivityOptions
from waystation.core.wire import COLLECT_ACTIVITY, SESSION_ARCHIVE_ACTIVITY
from waystation.workflows.engine_activity import execute_engine_activity, settings
from waystation.workflows.ports import failure_of

ONE_READING = "one-reading"
"""Marks, in histories, that readings asked for while one waits to begin are one."""
READ_OUT = "read-out"
"""Marks, in histories, that what is being read is waited for before the next invocation begins."""


class Readings:
    """Which invocations are being read: each of them by one reading at a time, the others wait in a queue."""

    def __init__(self) -> None:
        self._locks: dict[int, asyncio.Lock] = {}
        self._asked: dict[tuple[int, bool], int] = {}
        """By signals, and not begun: of which invocation, if it is said to be over; up to where."""

    def lock(self, number: int) -> asyncio.Lock:
        """Return what a reading of an invocation holds."""
        return self._locks.setdefault(number, asyncio.Lock())

    def asked(self, number: int, at: int | None) -> bool:
        """Note that a signal asks for a reading; whether that is a further one. Anybody can send a thousand."""
        key = number, at is None
        further = key not in self._asked or not workflow.patched(ONE_READING)
        self._asked[key] = (at or 0) if further else max(self._asked[key], at or 0)
        return further

    def begun(self, number: int, at: int | None) -> int | None:
        """Return up to where a reading that begins reads, None for the end."""
        return max(self._asked.pop((number, at is None), 0), at or 0) or None

    async def done(self) -> None:
        """Wait for the readings under way; those that signals ask for meanwhile stand behind in the queue."""
        under_way = [lock for lock in self._locks.values() if lock.locked()]
        if under_way and workflow.patched(READ_OUT):
            for lock in under_way:
                async with lock:
                    pass


async def collected(number: int, since: int, at: int | None) -> Collected | None:
    """Return what an invocation did after its first `since` entries; None when it cannot be read."""
    given = CollectInput(number=number, since=since, at=at)
    data = await _activity(COLLECT_ACTIVITY, given.encode(), settings().collect, f"invocation {number}")
    return Collected.model_validate(decode(data)) if data is not None else None


async def archived(reports: tuple[str, ...]) -> KeptTranscript | None:
    """Return the transcript as the next run is given it; None when it cannot be kept."""
    given = SessionArchiveInput(reports=reports)
    data = await _activity(SESSION_ARCHIVE_ACTIVITY, given.encode(), settings().archive_session, "archive")
    return KeptTranscript.model_validate(decode(data)) if data is not None else None


async def _activity(name: str, params: bytes, options: ActivityOptions, what: str) -> bytes | None:
    try:
        return await execute_engine_activity(name, params, options, summary=what)
    except ActivityError as error:
        workflow.logger.warning("session.not_read: %s: %s", what, failure_of(error).message)
        return None
