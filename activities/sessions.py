"""Sessions, as activities see them: what was said before an invocation, what one did, and the packing of transcripts.

As with invocations, only history is read, never a worker asked.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowHistoryEventFilterType
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.activities.heartbeat import beating
from waystation.activities.scopes import ScopeKeeper
from waystation.activities.turns import TurnReader
from waystation.core import ids, segment
from waystation.core.conversation import Conversation
from waystation.core.entry import Entry, MessageJoined, ModelReplied
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.log import Log
from waystation.core.payload import encode
from waystation.core.report import MAX_REPORT_BYTES, Report, SessionLink, changes
from waystation.core.segment import SegmentRef
from waystation.core.session_data import OPEN, Collected, CollectInput, KeptTranscript, SessionArchiveInput, TurnStatus
from waystation.core.wire import COLLECT_ACTIVITY, SESSION_ARCHIVE_ACTIVITY
from waystation.history import SessionReader, fetch_events_after
from waystation.recent import Recent
from waystation.storage import Blobs
from waystation.workflows.ports import data_of, raw

events = structlog.get_logger("waystation.activities")

MAX_SESSIONS = 200
"""Transcripts kept in memory, and logs of their invocations; what goes is read again when needed."""
MAX_INLINE_BYTES = 100_000
"""A transcript up to this size is handed from run to run; what is larger goes to the store."""
MAX_WITHOUT_STORE_BYTES = 1_500_000
"""Up to this size what an invocation said goes into history when the store fails; the server takes 2 MB."""
CLOSED_WITHIN_S = 20.0
"""An invocation tells that it is over one workflow task before it is."""


@dataclass(slots=True)
class _Known:
    """One session as far as this process knows it."""

    run_id: str = ""
    reader: SessionReader | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Conversations(Protocol):
    """Where activities have from what was said before an invocation."""

    async def conversation(self, log: Log) -> Conversation:
        """Return an invocation's log after what was said before it."""


class Sessions:
    """The sessions that this process works for."""

    def __init__(self, client: Client, blobs: Blobs, scopes: ScopeKeeper, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._client, self._blobs, self._scopes = client, blobs, scopes
        self._known = Recent(lambda _: _Known(), most=max_sessions)
        self._turns = Recent(lambda id: TurnReader(client, id, blobs.get), most=max_sessions)
        self.reads = 0
        """How often history was read; for tests and metrics."""

    @property
    def activities(self) -> list[Callable[..., Any]]:
        """What a worker serves of it."""
        return [self.collect, self.archive]

    async def conversation(self, log: Log) -> Conversation:
        """Return an invocation's log after what was said before it.

        Raises:
            ApplicationError: What was said before it cannot be read now.
        """
        link = log.input.session if log.input else None
        if link is None:
            return Conversation(log)
        try:
            return await self._before(link, log)
        except (ForeignHistory, StoreFailed, RPCError) as error:
            text = f"What was said before in the session cannot be read: {error}"[:500]
            raise ApplicationError(text, type=type(error).__name__) from None

    async def _before(self, link: SessionLink, log: Log) -> Conversation:
        known = self._known.of(link.id)
        async with known.lock:
            if known.reader is None or link.number not in known.reader.transcript.marks:
                try:
                    await self._read(link.id, link.run_id, known)
                except RPCError as error:
                    # A later run knows all that an earlier one did, which may be past its retention.
                    if error.status is not RPCStatusCode.NOT_FOUND or known.run_id == "":
                        raise
                    await self._read(link.id, "", known)
            assert known.reader is not None
            transcript = known.reader.transcript
            if link.number not in transcript.marks:
                raise ForeignHistory(f"Session {link.id!r} never started its invocation {link.number}.")
            return Conversation(log, transcript, transcript.marks[link.number])

    async def _read(self, workflow_id: str, run_id: str, known: _Known) -> None:
        self.reads += 1
        if known.reader is None or known.run_id != run_id:
            previous = known.reader.transcript if known.reader else None
            known.run_id, known.reader = run_id, SessionReader(workflow_id, self._blobs, previous)
        reader = known.reader
        try:
            await reader.read(await fetch_events_after(self._client, workflow_id, run_id, reader.last_event_id))
        except BaseException:
            known.reader = None  # half read
            raise

    @activity.defn(name=COLLECT_ACTIVITY)
    async def collect(self, data: RawValue) -> RawValue:
        """Take a `CollectInput`, return a `Collected`: what an invocation of the session that asks did."""
        with beating(), _typed("collect"):
            return raw((await self._collected(CollectInput.model_validate_json(data_of(data.payload)))).encode())

    async def _collected(self, given: CollectInput) -> Collected:
        invocation_id = ids.session_invocation(activity.info().workflow_id or "", given.number)
        turn = self._turns.of(invocation_id)
        try:
            async with turn.lock:
                log = await turn.log()
                # Only its own history tells: anybody may send a signal that says so, and the session may have passed
                # over the true one just before it continued as new.
                if turn.announced and not log.ended:
                    await _closed(self._client.get_workflow_handle(invocation_id))
                    log = await turn.log()
                collected = await self._report(log, turn, given)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return Collected(number=given.number, status="failed")
        except ForeignHistory as error:
            raise ApplicationError(str(error), type="ForeignHistory", non_retryable=True) from None
        if collected.status not in OPEN:
            self._turns.drop(invocation_id)
        return collected

    async def _report(self, log: Log, turn: TurnReader, given: CollectInput) -> Collected:
        after = log if given.at is None else _replayed(log, given.at)
        status = _status(after)
        if status == "running" or after.length < given.since:
            return Collected(number=given.number, status="running")
        if status == "waiting" and (given.at is None or after.length == given.since):
            return Collected(number=given.number, status=status)
        if after.ended and after.ended.status in ("terminated", "timed_out"):
            await self._scopes.tell_rest(after, turn.run_id)
        known, before = turn.told
        if known != given.since:
            before = _replayed(log, given.since).state
        new = after.since(given.since)
        packed = segment.to_json(new)
        ref = await self._kept(encode(packed), len(new))
        turn.told = after.length, after.state
        delta, removed = changes(before, after.state)
        report = Report(
            since=given.since,
            entries=None if ref else tuple(packed),
            state_delta=delta,
            removed_keys=removed,
            joined=_joined(new),
            standing=after.standing,
            search_attributes=any(isinstance(e.body, ModelReplied) and e.body.reply.search_attributes for e in new),
        )
        return Collected(
            number=given.number,
            status=status,
            at=after.length,
            report=report,
            segment=ref,
            next_agent=after.result().next_agent,
        )

    @activity.defn(name=SESSION_ARCHIVE_ACTIVITY)
    async def archive(self, data: RawValue) -> RawValue:
        """Take an `SessionArchiveInput`, return an `KeptTranscript`: the transcript of the session that asks."""
        with beating(), _typed("archive"):
            return raw((await self._archived(SessionArchiveInput.model_validate_json(data_of(data.payload)))).encode())

    async def _archived(self, given: SessionArchiveInput) -> KeptTranscript:
        info = activity.info()
        workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        known = self._known.of(workflow_id)
        async with known.lock:
            await self._read(workflow_id, run_id, known)
            reader = known.reader
            assert reader
            assert reader.given
            for ref in given.reports:
                reader.transcript.apply(ref)
            segments = reader.given.segments
            items = reader.transcript.items[sum(ref.entries for ref in segments) :]
            if len(data := encode(items)) > MAX_INLINE_BYTES:
                return KeptTranscript(segments=(*segments, await self._put(data, len(items))))
            return KeptTranscript(segments=segments, items=tuple(items))

    async def _kept(self, data: bytes, entries: int) -> SegmentRef | None:
        """Keep what an invocation said where it is not to stand in history; None when it is to, or has to, stand there.

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


@contextmanager
def _typed(what: str) -> Iterator[None]:
    """Tell the session that the store failed, and whoever looks at the log."""
    try:
        yield
    except StoreFailed as error:
        info = activity.info()
        events.warning(f"session.{what}_failed", session=info.workflow_id, attempt=info.attempt, problem=str(error))
        raise ApplicationError(str(error), type="StoreFailed") from None


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
    if log.ended is None:
        return "waiting" if log.waiting() and not log.busy else "running"
    match log.ended.status:
        case "completed":
            return log.result().status
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"


def _joined(entries: list[Entry]) -> tuple[int, ...]:
    return tuple(e.body.join for e in entries if isinstance(e.body, MessageJoined) and e.body.join is not None)
