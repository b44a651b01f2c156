"""Sessions as activities read them: what was said before an invocation, what an invocation did, transcripts to archive.

As with invocations, only history is read, never a worker asked.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from cachetools import LRUCache
from temporalio import activity
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowHistoryEventFilterType
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.activities.activity_attempt import beating, failing_as
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.core import (
    CHILD_ENDED_SIGNAL,
    MAX_REPORT_BYTES,
    Collected,
    CollectInput,
    Conversation,
    Fetch,
    ForeignHistory,
    JsonObject,
    KeptTranscript,
    Log,
    MessageJoined,
    ModelReplied,
    Projection,
    Report,
    SegmentRef,
    SessionArchiveInput,
    SessionLink,
    StoreFailed,
    TurnStatus,
    changes,
    encode,
    entries_to_json,
    ids,
    is_working,
)
from waystation.core.session import OPEN_STATUSES
from waystation.history import (
    HistoryReader,
    SessionReader,
    continued_as,
    fetch_events_after,
    fetch_log_before,
    run_id_of,
)
from waystation.storage import Blobs

MAX_SESSIONS = 200
"""Transcripts kept in memory, and logs of their invocations; what goes is read again when needed."""
MAX_INLINE_BYTES = 100_000
"""A transcript up to this size is handed from run to run; what is larger goes to the store."""
MAX_WITHOUT_STORE_BYTES = 1_500_000
"""Up to this size what an invocation said goes into history when the store fails; the server takes 2 MB."""
CLOSED_WITHIN_S = 20.0
"""An invocation announces its end one workflow task before it ends."""


class Conversations(Protocol):
    """Where activities read what was said before an invocation."""

    async def conversation(self, log: Log) -> Conversation:
        """Return an invocation's log after what was said before it."""


@dataclass(slots=True)
class _Known:
    """One session as far as this process knows it."""

    run_id: str = ""
    reader: SessionReader | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Sessions:
    """The sessions that this process works for."""

    def __init__(self, client: Client, blobs: Blobs, scopes: ScopeKeeper, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._client, self._blobs, self._scopes = client, blobs, scopes
        self._known: LRUCache[str, _Known] = LRUCache(max_sessions)
        self._turns: LRUCache[str, TurnReader] = LRUCache(max_sessions)

    async def conversation(self, log: Log) -> Conversation:
        """Return an invocation's log after what was said before it.

        Raises:
            ApplicationError: What was said before it cannot be read now.
        """
        link = log.state.input.session if log.state.input else None
        if link is None:
            return Conversation(log)
        try:
            return await self._before(link, log)
        except (ForeignHistory, StoreFailed, RPCError) as error:
            text = f"What was said before in the session cannot be read: {error}"[:500]
            raise ApplicationError(text, type=type(error).__name__) from None

    async def _before(self, link: SessionLink, log: Log) -> Conversation:
        known = self._known.setdefault(link.id, _Known())
        async with known.lock:
            reader = known.reader
            if reader is None or link.number not in reader.transcript.marks:
                try:
                    reader = await self._read(link.id, link.run_id, known)
                except RPCError as error:
                    # A later run knows all that an earlier one did, which may be past its retention.
                    if error.status is not RPCStatusCode.NOT_FOUND or known.run_id == "":
                        raise
                    reader = await self._read(link.id, "", known)
            transcript = reader.transcript
            if link.number not in transcript.marks:
                raise ForeignHistory(f"Session {link.id!r} never started its invocation {link.number}.")
            return Conversation(log, transcript, transcript.marks[link.number])

    async def _read(self, workflow_id: str, run_id: str, known: _Known) -> SessionReader:
        reader, known.reader = known.reader, None  # half read, should this fail
        if reader is None or known.run_id != run_id:
            reader = SessionReader(workflow_id, self._blobs, reader.transcript if reader else None)
            known.run_id = run_id
        await reader.read(await fetch_events_after(self._client, workflow_id, run_id, reader.last_event_id))
        known.reader = reader
        return reader

    async def collect(self, params: CollectInput) -> bytes:
        """Return an encoded `Collected`: what an invocation of the session that asks did.

        Raises:
            ApplicationError: Its history is not an invocation's, or the store failed.
        """
        invocation_id = ids.session_invocation(activity.info().workflow_id or "", params.number)
        turn = self._turns.setdefault(invocation_id, TurnReader(self._client, invocation_id, self._blobs.get))
        with beating(), failing_as("session.collect_failed"):
            try:
                async with turn.lock:
                    log = await turn.log()
                    # Only its own history counts: anybody may send a signal that announces the end, and the session may
                    # have passed over the true one just before it continued as new.
                    if turn.announced and not log.state.outcome.ended:
                        await _closed(self._client.get_workflow_handle(invocation_id))
                        log = await turn.log()
                    collected = await self._report(log, turn, params)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                return Collected(number=params.number, status="failed").encode()
        if collected.status not in OPEN_STATUSES:
            self._turns.pop(invocation_id, None)
        return collected.encode()

    async def _report(self, log: Log, turn: "TurnReader", params: CollectInput) -> Collected:
        after = log if params.at is None else _replayed(log, params.at)
        status = _status(after)
        if status == "running" or after.length < params.since:
            return Collected(number=params.number, status="running")
        if status == "waiting" and (params.at is None or after.length == params.since):
            return Collected(number=params.number, status=status)
        if after.state.outcome.ended in ("terminated", "timed_out"):
            await self._scopes.deliver_rest(after, turn.run_id)
        reported, before = turn.reported
        if reported != params.since:
            before = _replayed(log, params.since).state.session.values
        new = after.since(params.since)
        packed = entries_to_json(new)
        ref = await self._stored(encode(packed), len(new))
        turn.reported = after.length, after.state.session.values
        delta, removed = changes(before, after.state.session.values)
        report = Report(
            since=params.since,
            entries=None if ref else tuple(packed),
            state_delta=delta,
            removed_keys=removed,
            joined=tuple(e.body.join for e in new if isinstance(e.body, MessageJoined) and e.body.join is not None),
            standing=after.state.approvals.standing,
            search_attributes=any(isinstance(e.body, ModelReplied) and e.body.reply.search_attributes for e in new),
        )
        return Collected(
            number=params.number,
            status=status,
            at=after.length,
            report=report,
            segment=ref,
            next_agent=after.state.result().next_agent,
        )

    async def _stored(self, data: bytes, entries: int) -> SegmentRef | None:
        """Store what an invocation said; None when it stays in history, since it is small or the store fails.

        The session takes no further message until it has this.
        """
        if len(data) <= MAX_REPORT_BYTES:
            return None
        try:
            return await self._put(data, entries)
        except StoreFailed:
            if len(data) > MAX_WITHOUT_STORE_BYTES:
                raise
            return None

    async def _put(self, data: bytes, entries: int) -> SegmentRef:
        return SegmentRef(digest=await self._blobs.put(data), size=len(data), entries=entries)

    async def archive(self, params: SessionArchiveInput) -> bytes:
        """Return an encoded `KeptTranscript`: the transcript of the session that asks.

        Raises:
            ApplicationError: The store failed.
        """
        info = activity.info()
        known = self._known.setdefault(info.workflow_id or "", _Known())
        with beating(), failing_as("session.archive_failed", final=()):
            async with known.lock:
                reader = await self._read(info.workflow_id or "", info.workflow_run_id or "", known)
                assert reader.given
                for ref in params.reports:
                    reader.transcript.apply(ref)
                segments = reader.given.segments
                items = reader.transcript.items[sum(ref.entries for ref in segments) :]
                if len(data := encode(items)) > MAX_INLINE_BYTES:
                    return KeptTranscript(segments=(*segments, await self._put(data, len(items)))).encode()
                return KeptTranscript(segments=segments, items=tuple(items)).encode()


async def _closed(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait a while for the end of an invocation that announced it."""
    closing = WorkflowHistoryEventFilterType.CLOSE_EVENT
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSED_WITHIN_S):
            async for _ in handle.fetch_history_events(wait_new_event=True, event_filter_type=closing):
                pass


def _replayed(log: Log, count: int) -> Log:
    """Return the log as it was after `count` entries."""
    if count >= len(log.entries):
        return log
    return Log(log.invocation_id).extend(log.entries[:count])


def _status(log: Log) -> TurnStatus:
    match log.state.outcome.ended:
        case None:
            return "waiting" if log.state.waiting() and not is_working(log.state) else "running"
        case "completed":
            return log.state.result().status
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"


class TurnReader:
    """Reads one invocation, and later what came since, through all of its runs: each entry is read and applied once."""

    def __init__(self, client: Client, id: str, fetch: Fetch) -> None:
        self._client, self._id, self._fetch = client, id, fetch
        self.lock = asyncio.Lock()
        self.reported: tuple[int, JsonObject] = (0, {})
        """How many entries were reported last, and the state after them."""
        self._begin("")

    async def log(self) -> Log:
        """Return the log as of now; it is one log that grows.

        Raises:
            RPCError: The server has no such invocation, or does not answer.
            ForeignHistory: It is none, or its history is damaged.
            StoreFailed: What earlier runs did cannot be had.
        """
        if self._projection:
            try:
                log = await self._read_on()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                # The run is past its retention; the present one may not be.
            else:
                if log.state.outcome.ended != "terminated":
                    return log
                # Whoever resets an invocation has this run terminated, and another one goes on from some point of it.
        self._begin("")
        return await self._read_on()

    def _begin(self, run_id: str) -> None:
        self.run_id = run_id
        """The run that was read last."""
        self._reader = HistoryReader()
        self._projection: Projection | None = None
        self.announced = False
        """Whether it has told its session that it is over, which it does one workflow task before it is."""

    async def _read_on(self) -> Log:
        log: Log | None = None
        while True:
            events = await fetch_events_after(self._client, self._id, self.run_id, self._reader.last_event_id)
            projection, self._projection = self._projection, None  # half read, should this fail
            if projection is None:
                log = log or await fetch_log_before(self._client, self._id, events[0], self._fetch)
                projection = Projection(self._id, log)
                self.run_id = self.run_id or run_id_of(events)
            projection.feed(self._reader.read(events))
            self.announced = self.announced or any(map(_announces, events))
            projection.flush()
            self._projection, log = projection, projection.log
            if not events or (following := continued_as(events[-1])) is None:
                return log
            self._begin(following)


def _announces(event: HistoryEvent) -> bool:
    sent = event.signal_external_workflow_execution_initiated_event_attributes
    return sent.signal_name == CHILD_ENDED_SIGNAL
