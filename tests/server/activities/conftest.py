"""A client as a worker has it, and what it asks of the server."""

from typing import Any

import pytest
from temporalio.client import Client

from waystation.client import connect
from waystation.embedded import EmbeddedServer


@pytest.fixture
async def temporal(server: EmbeddedServer) -> Client:
    """A client as a worker has it."""
    return await connect(address=server.address)


class Pages:
    """Counts the pages of histories that a client asks for, from the start and from the end."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cold = self.tail = 0
        service = client.workflow_service
        oldest, newest = service.get_workflow_execution_history, service.get_workflow_execution_history_reverse

        async def cold(*args: Any, **options: Any) -> Any:
            self.cold += 1
            return await oldest(*args, **options)

        async def tail(*args: Any, **options: Any) -> Any:
            self.tail += 1
            return await newest(*args, **options)

        monkeypatch.setattr(service, "get_workflow_execution_history", cold)
        monkeypatch.setattr(service, "get_workflow_execution_history_reverse", tail)


@pytest.fixture
def pages(temporal: Client, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """What that client asks for."""
    return Pages(temporal, monkeypatch)
