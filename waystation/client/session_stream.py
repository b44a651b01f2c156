"""Events of a session as they are recorded, from whichever of its invocations."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.client.client_context import ClientContext
from waystation.client.invocation_handle import Invocation
from waystation.client.streams import new_events, stream_logs
from waystation.core import errors
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import decode
from waystation.core.session_data import OPEN, SessionInput
from waystation.core.wire import WORKFLOW, InvocationResult
from waystation.history import HistoryPoll, describe_workflow, is_not_found

BACKLOG = 100
"""How many updates may be buffered; reading of histories pauses beyond that."""


class StartedInvocations:
    """The invocations that a session has started, read from its history by long poll, through all its runs."""

    def __init__(self, client: Client, session: str) -> None:
        self._client, self._session = client, session
        self._pages: HistoryPoll | None = None
        self._last = 0
        self._reading = asyncio.Lock()
        self.order: list[str] = []
        """Ids of those that were open at the start of the first run that was read, and of those started since."""
        self.reported: set[str] = set()
        """Those of them that are over and whose events are in the session's own history."""
        self.over = False
        """Whether the session has ended."""

    @property
    def opened(self) -> bool:
        """Whether invocations that start from now on are seen."""
        return self._pages is not None

    async def until(self, invocation_id: str, *, new: bool = False) -> None:
        """Wait until an invocation has started; `new` means that its message was sent after this was opened.

        Raises:
            SessionClosed: The session ended before it started.
            UnknownSession: There is no such session.
        """
        async with self._reading:
            await self._open()
        # It may have begun in a run before the one that is read.
        if not new and invocation_id not in self.order and await describe_workflow(self._client, invocation_id):
            return
        while invocation_id not in self.order:
            if not await self.more() and invocation_id not in self.order:
                raise errors.SessionClosed(
                    f"The session {self._session!r} ended before {invocation_id!r} began, which now never will."
                )

    async def more(self) -> bool:
        """Wait for history to grow, and return whether it may grow further."""
        async with self._reading:
            await self._open()
            assert self._pages is not None
            if not self.over:
                await self._read(self._pages)
            return not self.over

    async def caught_up(self) -> None:
        """Read the history up to now."""
        described = await describe_workflow(self._client, self._session)
        if described is None:
            raise unknown_session(self._session)
        length = described.history_length
        async with self._reading:
            await self._open()
            while not self.over and self._pages is not None and self._last < length:
                await self._read(self._pages)

    async def _open(self, run_id: str | None = None) -> None:
        if self._pages is None or run_id is not None:
            self._pages = HistoryPoll(self._client, self._session, run_id)
            self._last = 0

    async def _read(self, pages: HistoryPoll) -> None:
        try:
            page = await pages.page()
        except RPCError as error:
            if not is_not_found(error):
                raise
            self._pages = None
            raise unknown_session(self._session) from None
        following: str | None = None
        for event in page:
            self._last = event.event_id
            following = self._take(event) or following
        if following := following or await pages.replaced_by():
            await self._open(following)
        elif not pages.more:
            self.over = True

    def _take(self, event: HistoryEvent) -> str | None:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                payloads = event.workflow_execution_started_event_attributes.input.payloads
                given = SessionInput.model_validate(decode(b"".join(payload.data for payload in payloads)))
                carried = given.carried.turns if given.carried else ()
                for turn in carried:
                    if turn.status in OPEN:
                        self._began(f"{self._session}/{turn.n}")
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
                started = event.child_workflow_execution_started_event_attributes
                if started.workflow_type.name == WORKFLOW:
                    self._began(started.workflow_execution.workflow_id)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                completed = event.child_workflow_execution_completed_event_attributes
                data = b"".join(payload.data for payload in completed.result.payloads)
                report = InvocationResult.model_validate(decode(data)).report
                if report and report.entries is not None:
                    self.reported.add(completed.workflow_execution.workflow_id)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        return None

    def _began(self, invocation_id: str) -> None:
        if invocation_id not in self.order:
            self.order.append(invocation_id)


def unknown_session(id: str) -> errors.UnknownSession:
    """Return the error of a session that does not exist."""
    return errors.UnknownSession(
        f"No session has the id {id!r}; `waystation sessions` lists those there are, with their users and apps."
    )


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """New events of one invocation."""

    invocation: Invocation
    log: Log
    """The whole log; it grows."""
    events: list[Event]


def count_events(events: list[Event]) -> Counter[str]:
    """Return the number of events by invocation id."""
    return Counter(event.invocation_id for event in events)


async def stream_session(
    client: ClientContext,
    invocations: StartedInvocations,
    *,
    known: Mapping[str, int],
    passed_over: set[str],
    partial: bool = False,
) -> AsyncGenerator[SessionUpdate]:
    """Yield new events of the invocations of a session, until it ends.

    Args:
        client: The client.
        invocations: The session's invocations, opened.
        known: How many events of each invocation to skip, by id.
        passed_over: Ids of invocations to skip.
        partial: Whether to yield unfinished text of a model, too.
    """
    heard: asyncio.Queue[SessionUpdate | None] = asyncio.Queue(BACKLOG)

    async def hear(invocation_id: str) -> None:
        invocation = Invocation.from_id(client, invocation_id)
        shown = known.get(invocation_id, 0)
        async with aclosing(stream_logs(invocation, partial=partial)) as coming:
            async for log, pieces in coming:
                events = list(new_events(log, shown, pieces))
                shown = max(shown, len(log.events))
                await heard.put(SessionUpdate(invocation, log, events))

    async def hear_all() -> None:
        taken = 0
        async with asyncio.TaskGroup() as hearing:
            more = True
            while more or taken < len(invocations.order):
                for invocation_id in invocations.order[taken:]:
                    taken += 1
                    if invocation_id not in passed_over:
                        hearing.create_task(hear(invocation_id))
                more = await invocations.more() if more else False
        await heard.put(None)

    everything = asyncio.create_task(hear_all())
    try:
        while True:
            coming = asyncio.ensure_future(heard.get())
            await asyncio.wait((coming, everything), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                if everything.exception():
                    raise _cause(everything.exception())
                coming = asyncio.ensure_future(heard.get())
            one = await coming
            if one is None:
                return
            yield one
    finally:
        everything.cancel()
        await asyncio.gather(everything, return_exceptions=True)


def _cause(error: BaseException | None) -> BaseException:
    """Return the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error is not None
    return error
