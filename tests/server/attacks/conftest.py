"""An installation with keys, and workers of an attacker without keys."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from tests.server.attacks.attackers import Attacker, Script
from tests.server.conftest import Serve
from tests.server.identity.conftest import open_server
from tests.unit.identity.conftest import there
from waystation.agents import BaseAgent
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment

__all__ = ["open_server", "there"]


@pytest.fixture
async def serve(serve: Serve, server: EmbeddedServer) -> AsyncIterator[Serve]:
    """Serve as usual, but terminate pending invocations at the end, because other tests count them."""
    queues: set[str] = set()

    @contextlib.asynccontextmanager
    async def serving(*agents: BaseAgent, **options: Any) -> AsyncIterator[AgentEnvironment]:
        async with serve(*agents, **options) as env:
            queues.add(env.client.task_queue)
            yield env

    yield serving
    client = await Client.connect(server.address)
    for queue in queues:
        async for execution in client.list_workflows(f"TaskQueue = '{queue}' AND ExecutionStatus = 'Running'"):
            with contextlib.suppress(RPCError):
                await client.get_workflow_handle(execution.id).terminate()


@pytest.fixture
async def attacker(server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncIterator[Attacker]:
    """Return an attacker with a stock client and a stock worker on another task queue."""
    client = await Client.connect(server.address)
    queue = f"attacker-{abs(hash(request.node.nodeid))}"
    async with Worker(client, task_queue=queue, workflows=[Script]):
        yield Attacker(client, queue)
