"""An installation with keys of its own, and workers of somebody who has none of them."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from tests.server.attacks.attackers import Attacker, Script
from tests.unit.identity.conftest import there
from waystation.embedded import EmbeddedServer

__all__ = ["there"]


@pytest.fixture
async def attacker(server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncIterator[Attacker]:
    """Somebody with a stock client and a stock worker of their own, on a task queue of their own."""
    client = await Client.connect(server.address)
    queue = f"attacker-{abs(hash(request.node.nodeid))}"
    async with Worker(client, task_queue=queue, workflows=[Script]):
        yield Attacker(client, queue)
