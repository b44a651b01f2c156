"""Read the state of scopes from their histories: no worker has to run, and the latest signals are included."""

import asyncio
from dataclasses import dataclass, field

from cachetools import LRUCache
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.core import SCOPE_WORKFLOW, ForeignHistory, ScopeFold, ScopeSnapshot, decode, prefix_of
from waystation.history.history_events import EventType, attributes_of, json_data
from waystation.history.history_fetch import fetch_events_after, is_not_found

MAX_SCOPES = 200
"""How many scopes the LRU cache holds; an evicted one is read again when needed."""
_OVER = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    }
)


@dataclass(slots=True)
class _Known:
    """A scope as far as this process has read it."""

    fold: ScopeFold
    run_id: str = ""
    last_event_id: int = 0
    next_run_id: str = ""
    over: bool = False
    """Whether its run has ended for good, and the state with it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def begin(self, run_id: str) -> None:
        """Forget what was read, to read a run from its start."""
        self.fold = ScopeFold(self.fold.prefix)
        self.run_id, self.last_event_id, self.next_run_id, self.over = run_id, 0, "", False

    def learn(self, event: HistoryEvent) -> None:
        """Take the next event.

        Raises:
            ForeignHistory: It is not a scope's, or cannot be read.
        """
        attributes = attributes_of(event)
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                self._start(attributes)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                self.fold.apply(attributes.signal_name, json_data(attributes.input.payloads))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                self.next_run_id = attributes.new_execution_run_id
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED if attributes.new_run_id:
                # The run was reset; the start still tells the id that it had before.
                self.run_id = attributes.new_run_id
            case kind if kind in _OVER:
                self.over = True
        self.last_event_id = event.event_id

    def _start(self, started: WorkflowExecutionStartedEventAttributes) -> None:
        if started.workflow_type.name != SCOPE_WORKFLOW:
            raise ForeignHistory(
                f"State is kept by workflows of the type {SCOPE_WORKFLOW!r}; another holds its id: "
                f"{started.workflow_type.name!r}."
            )
        self.run_id = started.original_execution_run_id
        carried = started.continued_execution_run_id
        try:
            snapshot = ScopeSnapshot.model_validate(decode(json_data(started.input.payloads)[0])) if carried else None
            self.fold = ScopeFold(self.fold.prefix, snapshot)
        except ValueError:
            raise ForeignHistory("What a scope carried over cannot be read; it is a newer version's.") from None


class ScopeReader:
    """Reads scopes, and caches them: a second read fetches only new events."""

    def __init__(self, client: Client, *, max_scopes: int = MAX_SCOPES) -> None:
        self._client = client
        self._known: LRUCache[str, _Known] = LRUCache(max_scopes)

    async def read(self, scope_id: str) -> ScopeFold:
        """Return a scope as it is now; an empty one when nothing was ever written to it."""
        known = self._known.setdefault(scope_id, _Known(ScopeFold(prefix_of(scope_id))))
        async with known.lock:
            await self._catch_up(known, scope_id)
            return ScopeFold(known.fold.prefix) if known.over else known.fold

    async def _catch_up(self, known: _Known, scope_id: str) -> None:
        try:
            if known.run_id:
                await self._read_on(known, scope_id)
            if known.over or not known.run_id:  # there may be a new one of the same id
                known.begin("")
                await self._read_on(known, scope_id)
            while known.next_run_id:
                known.begin(known.next_run_id)
                await self._read_on(known, scope_id)
        except RPCError as error:
            if not is_not_found(error):
                raise
            deleted = bool(known.run_id)
            known.begin("")
            if deleted:  # perhaps there is a new one
                await self._catch_up(known, scope_id)

    async def _read_on(self, known: _Known, scope_id: str) -> None:
        """Read what is new in the run that is known, or else all of the current one."""
        for event in await fetch_events_after(self._client, scope_id, known.run_id, known.last_event_id):
            known.learn(event)
