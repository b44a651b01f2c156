"""Read the events of a run that are not known yet, by as few and as small requests as that takes."""

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client

from waystation.history import decoded

COLD_PAGE = 1_000
TAIL_PAGE = 20
"""In events. What is new is at the end, so a known run is read backwards: 2 ms instead of 10 for a long history."""


async def events_after(client: Client, execution: WorkflowExecution, known: int) -> list[HistoryEvent]:
    """Return the events after the one of id `known`, oldest first; some known ones may be among them."""
    service = client.workflow_service
    events: list[HistoryEvent] = []
    token = b""
    while True:
        if known:
            newest = GetWorkflowExecutionHistoryReverseRequest(
                namespace=client.namespace, execution=execution, maximum_page_size=TAIL_PAGE, next_page_token=token
            )
            back = await service.get_workflow_execution_history_reverse(newest, retry=True)
            events.extend(await decoded(back.history.events, client.data_converter))
            token = back.next_page_token
        else:
            oldest = GetWorkflowExecutionHistoryRequest(
                namespace=client.namespace, execution=execution, maximum_page_size=COLD_PAGE, next_page_token=token
            )
            page = await service.get_workflow_execution_history(oldest, retry=True)
            events.extend(await decoded(page.history.events, client.data_converter))
            token = page.next_page_token
        if not token or (known and events and events[-1].event_id <= known):
            return events[::-1] if known else events
