"""How an invocation keeps its session informed: that it waits for a person, and what became of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from temporalio import workflow

from waystation.core import (
    CHILD_ENDED_SIGNAL,
    MAX_REPORT_BYTES,
    PARKED_SIGNAL,
    JsonObject,
    Log,
    MessageJoined,
    Report,
    SessionLink,
    changes,
    encode,
    entries_to_json,
    is_working,
)
from waystation.workflows.ports import raw, unless_closed


class SessionReporter:
    """Reports to the session of an invocation, if it has one, what the session cannot see. Signals carry no content."""

    def __init__(self) -> None:
        self._since = 1
        """How many entries the session knows or was told to collect. The first it made itself."""
        self._state: JsonObject | None = None
        self._parked = workflow.info().continued_run_id is not None
        """Whether the session's run that started it may have gone on without it."""
        self._nudge: asyncio.Task[None] | None = None

    def waiting(self, log: Log) -> None:
        """Tell the session once the invocation only waits for a person: the next message may begin."""
        link = _link(log)
        if link is None or is_working(log.state) or log.length <= self._since or not log.state.waiting():
            return
        self._parked = True
        self._since, self._state = log.length, log.state.session.values
        given = {"invocation": link.number, "at": self._since}
        self._nudge = asyncio.create_task(_tell(link, PARKED_SIGNAL, given))

    def report(self, log: Log, *, search_attributes: bool) -> Report | None:
        """Return what the session does not know yet."""
        link = _link(log)
        if link is None or log.state.input is None:
            return None
        if self._since < log.entries_before:  # of an earlier run, which the session has read
            return Report(since=self._since, search_attributes=search_attributes)
        new = log.since(self._since)
        entries = entries_to_json(new)
        delta, removed = changes(
            log.state.input.state if self._state is None else self._state, log.state.session.values
        )
        return Report(
            since=self._since,
            entries=tuple(entries) if len(encode(entries)) <= MAX_REPORT_BYTES else None,
            state_delta=delta,
            removed_keys=removed,
            joined=tuple(e.body.join for e in new if isinstance(e.body, MessageJoined) and e.body.join is not None),
            standing=log.state.approvals.standing,
            search_attributes=search_attributes,
        )

    async def ended(self, log: Log) -> None:
        """Tell the session that the invocation is over, in case it has lost sight of it."""
        if (link := _link(log)) and self._parked:
            await _tell(link, CHILD_ENDED_SIGNAL, {"invocation": link.number})


def _link(log: Log) -> SessionLink | None:
    # A fork only reads in the conversation of its source; it is none of the session's invocations.
    started = log.state.input
    return started.session if started and not started.fork else None


def _tell(link: SessionLink, name: str, given: JsonObject) -> Coroutine[Any, Any, None]:
    # To the latest run of the session.
    session = workflow.get_external_workflow_handle(link.id)
    return unless_closed(session.signal(name, raw(encode(given))), "session.gone")
