"""Read the state of scopes from their histories.

This does not require a running worker, and the state includes signals that no worker has processed yet.
"""

import asyncio
from dataclasses import dataclass, field

from cachetools import LRUCache
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.core.errors import ForeignHistory
from waystation.core.payload import decode
from waystation.core.scope_state import SCOPE_WORKFLOW, ScopeFold, ScopeSnapshot, prefix_of
from waystation.history.history_events import EventType, get_attributes, read_json_payloads
from waystation.history.history_fetch import fetch_events_after, is_not_found

MAX_SCOPES = 200
"""Maximum number of scopes in the LRU cache. If an evicted scope is needed again, its whole history is read again."""
_CLOSED = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    }
)


@dataclass(slots=True)
class _CachedScope:
    """The part of a scope's history that this process has read so far."""

    fold: ScopeFold
    run_id: str = ""
    last_event_id: int = 0
    continued: bool = False
    """Whether the run has continued as new. Every later run carries the whole state."""
    ended: bool = False
    """Whether the scope's workflow has ended. A new workflow with the same ID starts with empty state."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reads: int = 0
    """Number of reads so far, and below, how many of them had begun when the last request to the server began."""
    served: int = 0

    def begin(self) -> None:
        """Discard what was read and start at the beginning of the latest run."""
        self.fold = ScopeFold(self.fold.prefix)
        self.run_id, self.last_event_id, self.continued, self.ended = "", 0, False, False

    def apply(self, event: HistoryEvent) -> None:
        """Update the scope from the next event.

        Raises:
            ForeignHistory: The workflow is not a scope, or its carried state cannot be read.
        """
        attributes = get_attributes(event)
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                self._start(attributes)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                self.fold.apply(attributes.signal_name, read_json_payloads(attributes.input.payloads))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                self.continued = True
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED if attributes.new_run_id:
                # The run was reset. Its start event still contains the run ID from before the reset.
                self.run_id = attributes.new_run_id
            case kind if kind in _CLOSED:
                self.ended = True
        self.last_event_id = event.event_id

    def _start(self, started: WorkflowExecutionStartedEventAttributes) -> None:
        if started.workflow_type.name != SCOPE_WORKFLOW:
            raise ForeignHistory(
                f"The workflow with the ID of this scope is a {started.workflow_type.name!r}, not a {SCOPE_WORKFLOW!r}."
            )
        self.run_id = started.original_execution_run_id
        carried = started.continued_execution_run_id
        try:
            snapshot = (
                ScopeSnapshot.model_validate(decode(read_json_payloads(started.input.payloads)[0])) if carried else None
            )
            self.fold = ScopeFold(self.fold.prefix, snapshot)
        except ValueError:
            raise ForeignHistory(
                "The carried state of a scope cannot be read. A newer version of Waystation may have recorded it."
            ) from None


class ScopeReader:
    """Reads scopes and caches them, so that reading a scope again fetches only new events."""

    def __init__(self, client: Client, *, max_scopes: int = MAX_SCOPES) -> None:
        self._client = client
        self._scopes: LRUCache[str, _CachedScope] = LRUCache(max_scopes)

    async def read(self, scope_id: str) -> ScopeFold:
        """Return the current state of a scope, which is empty if the scope's workflow does not exist or has ended.

        Raises:
            ForeignHistory: The workflow with this ID is not a scope, or its carried state cannot be read.
        """
        scope = self._scopes.setdefault(scope_id, _CachedScope(ScopeFold(prefix_of(scope_id))))
        scope.reads += 1
        number = scope.reads
        async with scope.lock:
            # All reads that wait for the lock share the next request. Otherwise, a hundred would take a second.
            if scope.served < number:
                begun = scope.reads
                await self._refresh(scope, scope_id)
                scope.served = begun
            return ScopeFold(scope.fold.prefix) if scope.ended else scope.fold

    def known_bytes(self, scope_id: str) -> int:
        """Return the size of the signals that the scope's run has received, as far as it was read."""
        return scope.fold.bytes if (scope := self._scopes.get(scope_id)) else 0

    async def _refresh(self, scope: _CachedScope, scope_id: str) -> None:
        try:
            if scope.run_id:
                await self._read_new_events(scope, scope_id)
            if scope.ended:  # there may be a new workflow with the same id
                scope.begin()
            # Skip the runs between this one and the latest: a busy scope may have continued hundreds of times since.
            while scope.continued or not scope.run_id:
                scope.begin()
                await self._read_new_events(scope, scope_id)
        except RPCError as error:
            if not is_not_found(error):
                raise
            deleted = bool(scope.run_id)
            scope.begin()
            if deleted:  # there may be a new workflow
                await self._refresh(scope, scope_id)

    async def _read_new_events(self, scope: _CachedScope, scope_id: str) -> None:
        """Read the new events of the run being read, or all events of the latest run if no run ID is known yet."""
        for event in await fetch_events_after(self._client, scope_id, scope.run_id, scope.last_event_id):
            scope.apply(event)
