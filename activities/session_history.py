"""Give activities access to sessions: earlier events, reports about invocations, and transcripts to archive.

Everything is read from histories. Workers are never queried.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cachetools import LRUCache
from temporalio import activity
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowHistoryEventFilterType
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.activities.activity_attempt import activity_failure, convert_errors, send_heartbeats
from waystation.activities.log_cache import LogCache
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.core import ids
from waystation.core.contract import (
    CHILD_ENDED_SIGNAL,
    MAX_REPORT_BYTES,
    InvocationReport,
    SegmentRef,
    SessionLink,
    diff_state,
)
from waystation.core.conversation import Conversation
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.log import Log, MessageJoined, ModelReplied, is_own_session, is_working
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import Fetch, Projection, entries_to_json
from waystation.core.session_log import (
    OPEN_STATUSES,
    Collected,
    CollectInput,
    SessionArchiveInput,
    StoredTranscript,
    TurnStatus,
)
from waystation.history import (
    HistoryReader,
    SessionReader,
    continued_as,
    fetch_events_after,
    fetch_log_before,
    find_run_id,
)
from waystation.storage import Blobs

MAX_SESSIONS = 200
"""Maximum number of sessions whose transcripts are cached, and of invocations whose conversations are cached. Evicted
ones are read again when needed."""
MAX_INLINE_BYTES = 100_000
"""Maximum size of the part of a transcript that is passed inline from run to run. A larger part is stored."""
MAX_WITHOUT_STORE_BYTES = 1_500_000
"""If the store fails, reports up to this size are kept in the history, and larger ones make the activity fail. The
server accepts up to 2 MB."""
CLOSED_WITHIN_S = 20.0
"""How long to wait for an invocation to close after it has announced its end. It announces its end one workflow task
before it closes."""


class ConversationReader(Protocol):
    """Reads the earlier events of a session."""

    async def conversation(self, log: Log) -> Conversation:
        """Return the conversation, which combines the session's earlier events and the invocation's log."""


@dataclass(slots=True)
class _CachedSession:
    """The part of a session that this process has read."""

    run_id: str = ""
    reader: SessionReader | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SessionHistories:
    """Reads sessions for the activities of one worker process, and caches them."""

    def __init__(
        self,
        client: Client,
        blobs: Blobs,
        scopes: ScopeKeeper,
        *,
        logs: LogCache | None = None,
        forks: bool = False,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        """Create a reader of sessions.

        Without `logs`, the reader does not check that a session started the calling invocation. If `forks` is true,
        forks may read the session of their source.
        """
        self._logs, self._forks = logs, forks
        self._client, self._blobs, self._scopes = client, blobs, scopes
        self._cached: LRUCache[str, _CachedSession] = LRUCache(max_sessions)
        self._turns: LRUCache[str, TurnReader] = LRUCache(max_sessions)

    async def conversation(self, log: Log) -> Conversation:
        """Return the conversation, which combines the session's earlier events and the invocation's log.

        Raises:
            ApplicationError: The earlier events cannot be read, or the session did not start this invocation (not
                retryable).
            StoreFailed: Earlier events could not be read from their store.
            RPCError: Earlier events could not be read from the server.
        """
        link = log.state.input.session if log.state.input else None
        if link is None:
            return Conversation(log)
        await self._check_session(log, link)
        try:
            return await self._with_earlier(link, log)
        except ForeignHistory as error:
            text = f"The earlier events of the session cannot be read: {error}"[:500]
            raise ApplicationError(text, type=type(error).__name__) from None

    async def _check_session(self, log: Log, link: SessionLink) -> None:
        """Check that the session started the calling invocation, because the log could be forged.

        A fork of one of the session's invocations is accepted, too, if forks are allowed.

        Raises:
            ApplicationError: The session did not start the invocation.
            RPCError: The server cannot be reached.
        """
        started = log.state.input
        if self._logs is None or started is None:
            return
        info = activity.info()
        origin = await self._logs.origin(info.workflow_id or "", info.workflow_run_id or "")
        # Compare the run, too, because anyone can start a workflow under the ID of a session that has ended.
        is_child = bool(origin and origin.parent == (link.id, link.run_id))
        is_fork = self._forks and started.fork is not None
        if not is_own_session(started) or not (is_child or is_fork):
            text = f"Session {link.id!r} did not start this invocation."
            raise ApplicationError(text, type="NotAllowed", non_retryable=True)

    async def _with_earlier(self, link: SessionLink, log: Log) -> Conversation:
        cached = self._cached.setdefault(link.id, _CachedSession())
        async with cached.lock:
            reader = cached.reader
            if reader is None or link.number not in reader.transcript.marks:
                try:
                    reader = await self._read(link.id, link.run_id, cached)
                except RPCError as error:
                    # This run's retention period may be over, but a later run includes its events.
                    if error.status is not RPCStatusCode.NOT_FOUND or cached.run_id == "":
                        raise
                    reader = await self._read(link.id, "", cached)
            transcript = reader.transcript
            if link.number not in transcript.marks:
                raise ForeignHistory(f"Session {link.id!r} never started its invocation {link.number}.")
            return Conversation(log, transcript, transcript.marks[link.number])

    async def _read(self, workflow_id: str, run_id: str, cached: _CachedSession) -> SessionReader:
        reader, cached.reader = cached.reader, None  # if reading fails, the reader is only half updated
        if reader is None or cached.run_id != run_id:
            reader = SessionReader(workflow_id, self._blobs, reader.transcript if reader else None)
            cached.run_id = run_id
        await reader.read(await fetch_events_after(self._client, workflow_id, run_id, reader.last_event_id))
        cached.reader = reader
        return reader

    async def collect(self, params: CollectInput) -> bytes:
        """Return an encoded `Collected` with the progress of one of the calling session's invocations since
        `params.since`. If the invocation does not exist, its status is `failed`.

        Raises:
            ApplicationError: The history does not belong to an invocation, or the store failed.
        """
        invocation_id = ids.session_invocation(activity.info().workflow_id or "", params.number)
        turn = self._turn(invocation_id)
        with send_heartbeats(), convert_errors("session.collect_failed"):
            try:
                async with turn.lock:
                    log = await turn.log()
                    # Rely only on the invocation's history: anyone can send the signal that announces its end, and the
                    # session may have missed the real one right before it continued as new.
                    if turn.announced and not log.state.outcome.ended:
                        await _wait_until_closed(self._client.get_workflow_handle(invocation_id))
                        log = await turn.log()
                    collected = await self._report(log, turn, params)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                return Collected(number=params.number, status="failed").encode()
        if collected.status not in OPEN_STATUSES:
            self._turns.pop(invocation_id, None)
        return collected.encode()

    async def find_progress(self, known: Sequence[tuple[int, int]]) -> list[int]:
        """Return which of the calling session's invocations have ended, or wait for an answer, with more log entries
        than the session knows.

        Args:
            known: Pairs of an invocation's number and the number of its entries that the session knows.
        """
        session = activity.info().workflow_id or ""
        found = await asyncio.gather(*(self._has_progress(ids.session_invocation(session, n), k) for n, k in known))
        return [number for (number, _), has_progress in zip(known, found, strict=True) if has_progress]

    async def _has_progress(self, invocation_id: str, known: int) -> bool:
        turn = self._turn(invocation_id)
        try:
            async with turn.lock:
                log = await turn.log()
        except RPCError as error:
            return error.status is not RPCStatusCode.NOT_FOUND
        except (ForeignHistory, StoreFailed):
            return True  # the activity `collect` reports the problem
        return turn.announced or (log.length > known and _status(log) != "running")

    def _turn(self, invocation_id: str) -> "TurnReader":
        return self._turns.setdefault(invocation_id, TurnReader(self._client, invocation_id, self._blobs.get))

    async def _report(self, log: Log, turn: "TurnReader", params: CollectInput) -> Collected:
        reported_log = log if params.at is None else _log_at(log, params.at)
        status = _status(reported_log)
        if status == "running" or reported_log.length < params.since:
            return Collected(number=params.number, status="running")
        if status == "waiting" and reported_log.length == params.since:
            return Collected(number=params.number, status=status)
        if reported_log.state.outcome.ended in ("terminated", "timed_out"):
            await self._scopes.deliver_rest(reported_log, turn.run_id)
        reported, state_before = turn.reported
        if reported != params.since:
            state_before = _log_at(log, params.since).state.session.values
        new_entries = reported_log.since(params.since)
        packed = entries_to_json(new_entries)
        ref = await self._store_if_large(encode(packed), len(new_entries))
        turn.reported = reported_log.length, reported_log.state.session.values
        delta, removed_keys = diff_state(state_before, reported_log.state.session.values)
        report = InvocationReport(
            since=params.since,
            entries=None if ref else tuple(packed),
            state_delta=delta,
            removed_keys=removed_keys,
            joined=tuple(
                e.body.join for e in new_entries if isinstance(e.body, MessageJoined) and e.body.join is not None
            ),
            standing=reported_log.state.approvals.standing,
            search_attributes=any(
                isinstance(e.body, ModelReplied) and e.body.reply.search_attributes for e in new_entries
            ),
        )
        return Collected(
            number=params.number,
            status=status,
            at=reported_log.length,
            report=report,
            segment=ref,
            next_agent=reported_log.state.result().next_agent,
        )

    async def _store_if_large(self, data: bytes, entries: int) -> SegmentRef | None:
        """Store a report's entries. Return None if they stay in the history: they are small, or the store failed.

        Falling back to the history matters, because the session accepts no more messages until it has the report.

        Raises:
            StoreFailed: The store failed, and the entries are too large for the history.
        """
        if len(data) <= MAX_REPORT_BYTES:
            return None
        try:
            return await self._store(data, entries)
        except StoreFailed:
            if len(data) > MAX_WITHOUT_STORE_BYTES:
                raise
            return None

    async def _store(self, data: bytes, entries: int) -> SegmentRef:
        digest = await self._blobs.put(data, workflow_id=activity.info().workflow_id or "")
        return SegmentRef(digest=digest, size=len(data), entries=entries)

    async def archive(self, params: SessionArchiveInput) -> bytes:
        """Return an encoded `StoredTranscript`, which contains or refers to the calling session's transcript.

        Raises:
            ApplicationError: The store failed. The server retries the activity.
        """
        info = activity.info()
        cached = self._cached.setdefault(info.workflow_id or "", _CachedSession())
        with send_heartbeats(), convert_errors("session.archive_failed", final=()):
            async with cached.lock:
                reader = await self._read(info.workflow_id or "", info.workflow_run_id or "", cached)
                assert reader.given
                for ref in params.reports:
                    reader.transcript.apply(ref)
                segments = reader.given.segments
                items = reader.transcript.items[sum(ref.entries for ref in segments) :]
                if len(data := encode(items)) > MAX_INLINE_BYTES:
                    return StoredTranscript(segments=(*segments, await self._store(data, len(items)))).encode()
                return StoredTranscript(segments=segments, items=tuple(items)).encode()


async def _wait_until_closed(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait up to `CLOSED_WITHIN_S` for an invocation to close after it has announced its end.

    Raises:
        ApplicationError: It is still open. The server retries the activity.
    """
    closing = WorkflowHistoryEventFilterType.CLOSE_EVENT
    try:
        async with asyncio.timeout(CLOSED_WITHIN_S):
            async for _ in handle.fetch_history_events(wait_new_event=True, event_filter_type=closing):
                pass
    except TimeoutError:
        text = f"{handle.id!r} has announced its end, but has not closed within {CLOSED_WITHIN_S:g} s."
        raise activity_failure("session.collect_failed", "StillAtWork", text, retry=True) from None


def _log_at(log: Log, count: int) -> Log:
    """Return the log with only its first `count` entries."""
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
    """Reads one invocation across all its runs. Each later read fetches and applies only new entries."""

    def __init__(self, client: Client, id: str, fetch: Fetch) -> None:
        self._client, self._id, self._fetch = client, id, fetch
        self.lock = asyncio.Lock()
        self.reported: tuple[int, JsonObject] = (0, {})
        """Number of the invocation's log entries that its session knows, and the state after these entries."""
        self._begin("")

    async def log(self) -> Log:
        """Return the current log. Later calls may extend the same object.

        Raises:
            RPCError: The server does not have the invocation, or does not respond.
            ForeignHistory: The workflow is not an invocation, or its history is damaged.
            StoreFailed: The log of earlier runs cannot be loaded.
        """
        if self._projection:
            try:
                log = await self._read_new()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                # This run's retention period is over, but the current run may still exist.
            else:
                if log.state.outcome.ended != "terminated":
                    return log
                # The run may have been reset, which terminates it and starts a new one from an earlier point.
        self._begin("")
        return await self._read_new()

    def _begin(self, run_id: str) -> None:
        self.run_id = run_id
        """The ID of the run that was read last."""
        self._reader = HistoryReader()
        self._projection: Projection | None = None
        self.announced = False
        """Whether the invocation has signaled its end to the session. It does so one workflow task before closing."""

    async def _read_new(self) -> Log:
        log: Log | None = None
        while True:
            events = await fetch_events_after(self._client, self._id, self.run_id, self._reader.last_event_id)
            projection, self._projection = self._projection, None  # if reading fails, the reader is only half updated
            if projection is None:
                log = log or await fetch_log_before(self._client, self._id, events[0], self._fetch)
                projection = Projection(self._id, log)
                self.run_id = self.run_id or find_run_id(events)
            projection.feed(self._reader.read(events))
            self.announced = self.announced or any(map(_is_announcement, events))
            projection.flush()
            self._projection, log = projection, projection.log
            if not events or (following := continued_as(events[-1])) is None:
                return log
            self._begin(following)


def _is_announcement(event: HistoryEvent) -> bool:
    signal = event.signal_external_workflow_execution_initiated_event_attributes
    return signal.signal_name == CHILD_ENDED_SIGNAL
