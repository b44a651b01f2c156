"""Details of invocations that visibility does not have: the beginning of the message, the usage and the error.

Those of a closed invocation never change, and are read only once: from the first and the last event of its history or,
if the last event has no usage, from the whole history. The usage of an open invocation is read again when its history
has grown.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cachetools import LRUCache
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistoryEventFilterType
from temporalio.service import RPCError

from waystation.client import AgentClient, InvocationEntry
from waystation.core.budget import Spent
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.history import decode_events, read_outcome
from waystation.presentation import terminal, text_safety

KEPT = 10_000
"""Number of runs whose details are kept. The least recently used are dropped first."""
CONCURRENT_READS = 16
PATIENCE_S = 1.0
"""How long a list waits for details. Those that are read later appear when the list is refreshed."""
REREAD_S = 10.0
"""How long the usage of an open invocation is shown before the server looks for a newer one."""
MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class InvocationDetails:
    """Details of an invocation."""

    message: str = ""
    """The beginning of the message."""
    tokens: int = 0
    """Tokens used by the invocation and the agents that it called. Of open called agents, none are counted yet."""
    cost: float = 0.0
    error: str = ""
    """Why the invocation failed or stopped early, in one line."""


UNKNOWN = InvocationDetails()


class Run(NamedTuple):
    """A run of an invocation."""

    id: str
    """The invocation ID."""
    run_id: str


@dataclass(slots=True)
class _OpenUsage:
    history_length: int
    read_at: float
    details: InvocationDetails


class DetailsReader:
    """Reads details, and keeps them in memory."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._messages: LRUCache[str, str] = LRUCache(KEPT)
        """The beginning of the message, by run ID."""
        self._ends: LRUCache[str, InvocationDetails] = LRUCache(KEPT)
        """The details of closed runs without their messages, by run ID."""
        self._open: LRUCache[str, _OpenUsage] = LRUCache(KEPT)
        """The usage of open runs, by run ID."""
        self._reading: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The reads that have not ended, by what they read and run ID."""
        self._limiter = asyncio.Semaphore(CONCURRENT_READS)

    async def read(
        self, entries: Iterable[InvocationEntry], *, patience_s: float = PATIENCE_S
    ) -> dict[str, InvocationDetails]:
        """Return the details of invocations by ID. Details that could not be read in time are left out."""
        chosen = list(entries)
        reads = [read for entry in chosen for read in self._start_reads(entry)]
        if reads:
            await asyncio.wait(reads, timeout=patience_s)  # slower ones continue
        return {entry.id: self._get(entry) for entry in chosen}

    async def read_messages(self, runs: Iterable[Run], *, patience_s: float = PATIENCE_S) -> Mapping[str, str]:
        """Return the beginnings of messages by run ID. Those that could not be read in time are left out."""
        chosen = set(runs)
        if reads := [
            self._start("message", run, self._read_message) for run in chosen if run.run_id not in self._messages
        ]:
            await asyncio.wait(reads, timeout=patience_s)
        return {run.run_id: self._messages.get(run.run_id, "") for run in chosen}

    def _get(self, entry: InvocationEntry) -> InvocationDetails:
        usage = self._open.get(entry.run_id)
        details = self._ends.get(entry.run_id) or (usage.details if usage else UNKNOWN)
        return replace(details, message=self._messages.get(entry.run_id, ""))

    def _start_reads(self, entry: InvocationEntry) -> Iterable[asyncio.Task[None]]:
        """Start to read what is unknown about an invocation, and yield these reads and those that already run."""
        run = Run(entry.id, entry.run_id)
        if entry.run_id not in self._messages:
            yield self._start("message", run, self._read_message)
        if entry.ended_at:
            if entry.run_id not in self._ends:
                yield self._start("end", run, self._read_end)
        elif (usage := self._open.get(entry.run_id)) is None or time.monotonic() - usage.read_at > REREAD_S:
            yield self._start("usage", run, self._read_usage)

    def _start(self, what: str, run: Run, read: Callable[[Run], Awaitable[None]]) -> asyncio.Task[None]:
        key = what, run.run_id
        if key not in self._reading:

            async def run_read() -> None:
                # Without these details, the list is still useful. The next request tries again.
                with suppress(RPCError, StoreFailed, ForeignHistory):
                    async with self._limiter:
                        await read(run)

            task = self._reading[key] = asyncio.create_task(run_read())
            task.add_done_callback(lambda _: self._reading.pop(key))
        return self._reading[key]

    async def _read_message(self, run: Run) -> None:
        event = await self._fetch(run.id, run.run_id, WorkflowHistoryEventFilterType.ALL_EVENT)
        if event is None:
            return
        # Only the first run has the summary, not those that continue it as new.
        first = event.workflow_execution_started_event_attributes.first_execution_run_id
        if first not in ("", run.run_id):
            with suppress(RPCError):  # the server may have deleted it
                event = await self._fetch(run.id, first, WorkflowHistoryEventFilterType.ALL_EVENT) or event
        self._messages[run.run_id] = await _read_summary(event, self._client.temporal)

    async def _read_end(self, run: Run) -> None:
        event = await self._fetch(run.id, run.run_id, WorkflowHistoryEventFilterType.CLOSE_EVENT)
        if event is None:
            return
        details, has_usage = await _read_end(event, self._client.temporal)
        if not has_usage:
            with suppress(StoreFailed, ForeignHistory):
                spent = await self._read_spent(run)
                details = replace(details, tokens=spent.total_tokens, cost=spent.cost)
        self._ends[run.run_id] = details

    async def _read_usage(self, run: Run) -> None:
        described = await self._client.temporal.get_workflow_handle(run.id, run_id=run.run_id or None).describe()
        known = self._open.get(run.run_id)
        if known is None or known.history_length != described.history_length:
            spent = await self._read_spent(run)
            known = _OpenUsage(
                described.history_length, 0.0, InvocationDetails(tokens=spent.total_tokens, cost=spent.cost)
            )
            self._open[run.run_id] = known
        known.read_at = time.monotonic()

    async def _read_spent(self, run: Run) -> Spent:
        return (await self._client.invocation(run.id).log()).state.used.spent

    async def _fetch(self, id: str, run_id: str, kind: WorkflowHistoryEventFilterType) -> HistoryEvent | None:
        """Return the first event of a kind."""
        handle = self._client.temporal.get_workflow_handle(id, run_id=run_id or None)
        async for event in handle.fetch_history_events(page_size=1, event_filter_type=kind):
            return event
        return None


async def _read_summary(first: HistoryEvent, temporal: Client) -> str:
    """Return the summary that the first event of a history contains, or an empty string."""
    if not first.user_metadata.HasField("summary"):
        return ""
    try:
        (summary,) = await temporal.data_converter.decode([first.user_metadata.summary], [str])
    except (LookupError, StoreFailed, RuntimeError, TypeError, ValueError):  # a client with another codec recorded it
        return ""
    return str(summary)


async def _read_end(last: HistoryEvent, temporal: Client) -> tuple[InvocationDetails, bool]:
    """Return what the last event of a history contains about the end of an invocation, and whether it has the usage."""
    try:
        (decoded,) = await decode_events([last], temporal.data_converter)
        outcome = read_outcome(decoded)
    except StoreFailed as error:
        return InvocationDetails(error=_clip(str(error))), True
    if outcome is None:
        return UNKNOWN, False
    result: dict[str, Any] = outcome.result or {}
    spent, failure = result.get("spent") or result.get("usage"), outcome.failure
    if failure and failure.used:
        spent = failure.used.spent.model_dump()
    # The status of a canceled invocation already says why it ended.
    failed = terminal.describe_failure(failure) if failure and failure.kind != "cancelled" else ""
    text, counts = _clip(failed or result.get("reason") or ""), spent or {}
    details = InvocationDetails(tokens=counts.get("total_tokens", 0), cost=counts.get("cost", 0.0), error=text)
    return details, spent is not None


def _clip(text: str) -> str:
    return text_safety.format_line(" ".join(text.split()), MAX_ERROR_CHARS)
