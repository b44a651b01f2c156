"""An installation with keys, and a server with an HTTP API that every web page can reach."""

from collections.abc import AsyncIterator

import pytest

from tests.server.conftest import server_at
from tests.tiers import find_cluster
from tests.unit.identity.conftest import there
from waystation.embedded import EmbeddedServer

__all__ = ["there"]


@pytest.fixture
async def open_server() -> AsyncIterator[EmbeddedServer]:
    """Run a server whose HTTP API has Temporal's defaults, or return the cluster of `make test-cluster`."""
    if address := find_cluster():
        yield server_at(address)
        return
    async with EmbeddedServer(dynamic_config={"frontend.httpAllowedHosts": ["*"]}) as server:
        yield server
