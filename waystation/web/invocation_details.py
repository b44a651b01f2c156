"""Details of invocations that visibility does not have: the beginning of the message, the usage and the error.

They are read from the first and the last event of the history, never change, and are therefore read only once.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import anyio
from cachetools import LRUCache
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistoryEventFilterType
from temporalio.service import RPCError

from waystation.client import AgentClient, InvocationEntry
from waystation.core import StoreFailed
from waystation.history import decode_events, read_outcome
from waystation.presentation import terminal, text_safety

KEPT = 10_000
"""Number of runs whose details are kept. The least recently used are dropped first."""
CONCURRENT_READS = 16
PATIENCE_S = 1.0
"""How long a list waits for details. Those that are read later appear when the list is refreshed."""
MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class InvocationDetails:
    """Details of an invocation. An open invocation has only a message."""

    message: str = ""
    """The beginning of the message."""
    tokens: int = 0
    cost: float = 0.0
    error: str = ""
    """Why the invocation failed or stopped early, in one line."""


UNKNOWN = InvocationDetails()


class DetailsReader:
    """Reads details, and keeps them in memory."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._messages: LRUCache[str, str] = LRUCache(KEPT)
        """The beginning of the message, by run ID."""
        self._ends: LRUCache[str, InvocationDetails] = LRUCache(KEPT)
        """The details of closed runs without their messages, by run ID."""
        self._limiter = asyncio.Semaphore(CONCURRENT_READS)

    async def read(self, entries: Iterable[InvocationEntry]) -> dict[str, InvocationDetails]:
        """Return the details of invocations by ID. Details that could not be read in time are left out."""
        chosen = list(entries)
        with anyio.move_on_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for entry in chosen:
                    if entry.run_id not in self._messages:
                        tasks.start_soon(self._read_message, entry)
                    if entry.ended_at and entry.run_id not in self._ends:
                        tasks.start_soon(self._read_end, entry)
        return {
            entry.id: replace(self._ends.get(entry.run_id, UNKNOWN), message=self._messages.get(entry.run_id, ""))
            for entry in chosen
        }

    async def _read_message(self, entry: InvocationEntry) -> None:
        event = await self._fetch(entry.id, entry.run_id, WorkflowHistoryEventFilterType.ALL_EVENT)
        if event is None:
            return
        # Only the first run has the summary, not those that continue it as new.
        first = event.workflow_execution_started_event_attributes.first_execution_run_id
        if first not in ("", entry.run_id):
            event = await self._fetch(entry.id, first, WorkflowHistoryEventFilterType.ALL_EVENT) or event
        self._messages[entry.run_id] = await _read_summary(event, self._client.temporal)

    async def _read_end(self, entry: InvocationEntry) -> None:
        event = await self._fetch(entry.id, entry.run_id, WorkflowHistoryEventFilterType.CLOSE_EVENT)
        if event is not None:
            self._ends[entry.run_id] = await _read_end(event, self._client.temporal)

    async def _fetch(self, id: str, run_id: str, kind: WorkflowHistoryEventFilterType) -> HistoryEvent | None:
        """Return the first event of a kind, or None if the history cannot be read."""
        handle = self._client.temporal.get_workflow_handle(id, run_id=run_id or None)
        try:
            async with self._limiter:
                async for event in handle.fetch_history_events(page_size=1, event_filter_type=kind):
                    return event
        except RPCError:
            pass
        return None


async def _read_summary(first: HistoryEvent, temporal: Client) -> str:
    """Return the summary that the first event of a history contains, or an empty string."""
    if not first.user_metadata.HasField("summary"):
        return ""
    try:
        (summary,) = await temporal.data_converter.decode([first.user_metadata.summary], [str])
    except (StoreFailed, RuntimeError, TypeError, ValueError):  # encoded with a codec that this process does not have
        return ""
    return str(summary)


async def _read_end(last: HistoryEvent, temporal: Client) -> InvocationDetails:
    """Return what the last event of a history contains about the end of an invocation."""
    try:
        (decoded,) = await decode_events([last], temporal.data_converter)
        outcome = read_outcome(decoded)
    except StoreFailed as error:
        return InvocationDetails(error=_clip(str(error)))
    if outcome is None:
        return UNKNOWN
    result: dict[str, Any] = outcome.result or {}
    spent, failure = result.get("spent") or result.get("usage") or {}, outcome.failure
    # The status of a canceled invocation already says why it ended.
    failed = terminal.describe_failure(failure) if failure and failure.kind != "cancelled" else ""
    text = _clip(failed or result.get("reason") or "")
    return InvocationDetails(tokens=spent.get("total_tokens", 0), cost=spent.get("cost", 0.0), error=text)


def _clip(text: str) -> str:
    return text_safety.format_line(" ".join(text.split()), MAX_ERROR_CHARS)
