"""Which invocations a session has begun, as its history tells while it grows."""

import asyncio

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.core import errors
from waystation.core.payload import decode
from waystation.core.session_data import OPEN, SessionInput
from waystation.core.wire import WORKFLOW, InvocationResult
from waystation.history import HistoryPoll, describe_workflow, is_not_found


class Begun:
    """Reads a session's history once, and then, by the server's long-poll, what is added: through all its runs."""

    def __init__(self, client: Client, session: str) -> None:
        self._client, self._session = client, session
        self._pages: HistoryPoll | None = None
        self._last = 0
        self._reading = asyncio.Lock()
        self.order: list[str] = []
        """The invocations that were open when the first run that was read began, and those begun since."""
        self.told: set[str] = set()
        """Those of them that are over and of which the session knows everything."""
        self.over = False
        """Whether the session has ended."""

    @property
    def opened(self) -> bool:
        """Whether whatever begins from now on is seen."""
        return self._pages is not None

    async def until(self, invocation_id: str, *, new: bool = False) -> None:
        """Wait until an invocation has begun; `new` says that it was sent after this was opened.

        Raises:
            SessionClosed: The session has ended before it began.
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
        """Read what there is by now."""
        described = await describe_workflow(self._client, self._session)
        if described is None:
            raise unknown(self._session)
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
            raise unknown(self._session) from None
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
                    self.told.add(completed.workflow_execution.workflow_id)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        return None

    def _began(self, invocation_id: str) -> None:
        if invocation_id not in self.order:
            self.order.append(invocation_id)


def unknown(id: str) -> errors.UnknownSession:
    """Return the error of a session that does not exist."""
    return errors.UnknownSession(
        f"No session has the id {id!r}; `waystation sessions` lists those there are, with their users and apps."
    )
