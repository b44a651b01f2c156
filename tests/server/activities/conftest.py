"""A client like a worker's, and its requests to the server."""

from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client

from waystation.client import connect
from waystation.embedded import EmbeddedServer
from waystation.history.history_fetch import TAIL_PAGE


@pytest.fixture
async def temporal(server: EmbeddedServer) -> Client:
    """Return a client like a worker's."""
    return await connect(address=server.address)


class Pages:
    """Counts the history pages that a client requests: of whole runs (cold), and of runs that it knows (tail)."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cold = self.tail = 0
        service = client.workflow_service
        fetch = service.get_workflow_execution_history_reverse

        async def counted(request: GetWorkflowExecutionHistoryReverseRequest, **options: Any) -> Any:
            if request.maximum_page_size > TAIL_PAGE:
                self.cold += 1
            else:
                self.tail += 1
            return await fetch(request, **options)

        monkeypatch.setattr(service, "get_workflow_execution_history_reverse", counted)


@pytest.fixture
def pages(temporal: Client, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """Count the requests of that client."""
    return Pages(temporal, monkeypatch)
