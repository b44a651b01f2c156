"""Fetch history events from the server: by long poll, or those after a known event."""

from collections.abc import Sequence
from itertools import dropwhile

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client, WorkflowHistoryEventAsyncIterator
from temporalio.service import RPCError

from waystation.history.history_events import TASK_UNDER_WAY, EventType, decode_events, run_id_of
from waystation.history.session_runs import describe_workflow

STEPPED_BACK = "CurrentBranchChangedFailure"
"""The server's error when a reader seems to know more of a run than it does: after a failover, and at times on a busy
server whose notification of a change arrives after the reader has seen the next one."""


class HistoryPoll:
    """The history of one run, by the server's long-poll, until the run ends."""

    def __init__(self, client: Client, workflow_id: str, run_id: str | None = None) -> None:
        self._client, self._workflow_id, self._run_id = client, workflow_id, run_id
        self._pages = self._from_the_start()
        self._first_run_id, self._last = "", HistoryEvent()

    @property
    def more(self) -> bool:
        """Whether there may be a further page."""
        return self._pages.current_page is None or bool(self._pages.next_page_token)

    async def page(self) -> Sequence[HistoryEvent]:
        """Wait for the next events, and return them with decoded payloads; occasionally none.

        When the server requires a new start, they begin with the first event again: events that were read before
        repeat.

        Raises:
            RPCError: The server has no such run, or does not answer.
            StoreFailed: Offloaded payloads cannot be looked for.
        """
        try:
            await self._pages.fetch_next_page()
        except RPCError as error:
            if not _stepped_back(error):
                raise
            self._pages = self._from_the_start()
            await self._pages.fetch_next_page()
        page = self._pages.current_page or ()
        if page:
            # By its id, since it need not be the latest run any more when it is read again.
            self._run_id, self._last = run_id_of(page) or self._run_id, page[-1]
            first = page[0].workflow_execution_started_event_attributes.first_execution_run_id
            self._first_run_id = first or self._first_run_id
        return await decode_events(page, self._client.data_converter)

    async def replaced_by(self) -> str | None:
        """Return the id of the run that replaces this one after a reset; None without one.

        Raises:
            RPCError: The server does not answer.
        """
        if self._last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            return None
        latest = await describe_workflow(self._client, self._workflow_id)
        if latest is None:  # deleted meanwhile
            return None
        # What is begun anew under the same id has no run in common with it.
        of_the_same = latest.raw_description.workflow_execution_info.first_run_id == self._first_run_id
        return latest.run_id if of_the_same and latest.run_id != self._run_id else None

    def _from_the_start(self) -> WorkflowHistoryEventAsyncIterator:
        handle = self._client.get_workflow_handle(self._workflow_id, run_id=self._run_id)
        return handle.fetch_history_events(wait_new_event=True)


def _stepped_back(error: RPCError) -> bool:
    return any(detail.type_url.endswith(STEPPED_BACK) for detail in error.grpc_status.details)


COLD_PAGE = 1_000
TAIL_PAGE = 20
"""In events. New events are at the end, so a known run is read backwards: 2 ms instead of 10 for a long history."""


async def fetch_events_after(client: Client, workflow_id: str, run_id: str, known: int) -> Sequence[HistoryEvent]:
    """Return the events after the one of id `known`, oldest first, with decoded payloads.

    A workflow task in flight is left out, because another event may get its id.

    Raises:
        RPCError: The server has no such run, or does not answer.
        StoreFailed: Offloaded payloads cannot be looked for.
    """
    execution = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    newest_first = await (_back_to(client, execution, known) if known else _all(client, execution))
    settled = dropwhile(lambda event: event.event_type in TASK_UNDER_WAY, newest_first)
    new = [event for event in settled if event.event_id > known]
    return await decode_events(reversed(new), client.data_converter)


async def _back_to(client: Client, execution: WorkflowExecution, known: int) -> list[HistoryEvent]:
    events: list[HistoryEvent] = []
    token = b""
    while True:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace, execution=execution, maximum_page_size=TAIL_PAGE, next_page_token=token
        )
        page = await client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        events.extend(page.history.events)
        token = page.next_page_token
        if not token or (events and events[-1].event_id <= known):
            return events


async def _all(client: Client, execution: WorkflowExecution) -> list[HistoryEvent]:
    events: list[HistoryEvent] = []
    token = b""
    while True:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=client.namespace, execution=execution, maximum_page_size=COLD_PAGE, next_page_token=token
        )
        page = await client.workflow_service.get_workflow_execution_history(request, retry=True)
        events.extend(page.history.events)
        token = page.next_page_token
        if not token:
            return events[::-1]
