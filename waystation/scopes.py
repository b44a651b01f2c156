"""Read the state of scopes from their histories: no worker has to run, and what was signalled a moment ago counts."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.errors import ForeignHistory
from waystation.core.payload import decode
from waystation.core.scope import WORKFLOW, ScopeFold, fold_from, prefix_of
from waystation.history import arguments, decoded

MAX_SCOPES = 200
"""Kept, each with its state; the one used longest ago goes first and is read again when needed."""
COLD_PAGE = 1_000
TAIL_PAGE = 20
"""In events; what is new is at the end."""
_STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_CONTINUED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
_TASK_FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
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


class Scopes:
    """The scopes that this process has read."""

    def __init__(self, client: Client, *, max_scopes: int = MAX_SCOPES) -> None:
        self._client, self._max_scopes = client, max_scopes
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.reads = 0
        """How often a scope was asked for; for tests and metrics."""

    async def read(self, scope_id: str) -> ScopeFold:
        """Return a scope as it is now; an empty one when nothing was ever written to it."""
        self.reads += 1
        known = self._known.setdefault(scope_id, _Known(ScopeFold(prefix_of(scope_id))))
        self._known.move_to_end(scope_id)
        while len(self._known) > self._max_scopes:
            self._known.popitem(last=False)
        async with known.lock:
            try:
                if known.run_id:
                    await self._read_on(known, scope_id)
                if known.over or not known.run_id:  # there may be a new one of the same id
                    known.begin("")
                    await self._read_run(known, scope_id)
                while known.next_run_id:
                    known.begin(known.next_run_id)
                    await self._read_run(known, scope_id)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                gone = bool(known.run_id)
                known.begin("")
                if gone:  # deleted; perhaps there is a new one
                    return await self._read_anew(known, scope_id)
            return ScopeFold(known.fold.prefix) if known.over else known.fold

    async def _read_anew(self, known: _Known, scope_id: str) -> ScopeFold:
        try:
            await self._read_run(known, scope_id)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            known.begin("")
        return ScopeFold(known.fold.prefix) if known.over else known.fold

    async def _read_run(self, known: _Known, scope_id: str) -> None:
        """Read a run from its start: the one that is known, or else the current one."""
        token = b""
        while True:
            page = await self._client.workflow_service.get_workflow_execution_history(
                GetWorkflowExecutionHistoryRequest(
                    namespace=self._client.namespace,
                    execution=WorkflowExecution(workflow_id=scope_id, run_id=known.run_id),
                    maximum_page_size=COLD_PAGE,
                    next_page_token=token,
                ),
                retry=True,
            )
            await self._learn(known, page.history.events)
            token = page.next_page_token
            if not token:
                return

    async def _read_on(self, known: _Known, scope_id: str) -> None:
        """Read what is new in the run that is known."""
        found: list[HistoryEvent] = []
        token = b""
        while True:
            page = await self._client.workflow_service.get_workflow_execution_history_reverse(
                GetWorkflowExecutionHistoryReverseRequest(
                    namespace=self._client.namespace,
                    execution=WorkflowExecution(workflow_id=scope_id, run_id=known.run_id),
                    maximum_page_size=TAIL_PAGE,
                    next_page_token=token,
                ),
                retry=True,
            )
            found.extend(page.history.events)
            token = page.next_page_token
            if not token or (found and found[-1].event_id <= known.last_event_id):
                await self._learn(known, found[::-1])
                return

    async def _learn(self, known: _Known, events: Sequence[HistoryEvent]) -> None:
        new = [event for event in events if event.event_id > known.last_event_id]
        for event in await decoded(new, self._client.data_converter):
            if event.event_type == _STARTED:
                started = event.workflow_execution_started_event_attributes
                if started.workflow_type.name != WORKFLOW:
                    raise ForeignHistory(
                        f"State is kept by workflows of the type {WORKFLOW!r}; another holds its id: "
                        f"{started.workflow_type.name!r}."
                    )
                known.run_id = started.original_execution_run_id
                carried = started.continued_execution_run_id
                try:
                    known.fold = fold_from(known.fold.prefix, decode(arguments(started.input)[0]) if carried else None)
                except ValueError:
                    raise ForeignHistory("What a scope carried over cannot be read; it is a newer version's.") from None
            elif event.event_type == _SIGNALED:
                signal = event.workflow_execution_signaled_event_attributes
                known.fold.apply(signal.signal_name, arguments(signal.input))
            elif event.event_type == _CONTINUED:
                continued = event.workflow_execution_continued_as_new_event_attributes
                known.next_run_id = continued.new_execution_run_id
            elif event.event_type == _TASK_FAILED and event.workflow_task_failed_event_attributes.new_run_id:
                # The run was reset; the start still tells the id that it had before.
                known.run_id = event.workflow_task_failed_event_attributes.new_run_id
            elif event.event_type in _OVER:
                known.over = True
            else:
                # Of an attempt at a workflow task, perhaps, which is in no history once the next attempt begins.
                continue
            known.last_event_id = event.event_id
