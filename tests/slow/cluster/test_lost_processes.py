"""The loss of one of two server processes."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.temporal_cluster import Cluster, build_programs, find_postgres, running_cluster
from tests.server.approvals.asking import listed, payer
from tests.server.conftest import server_at
from tests.server.workflows.outside import waiting
from tests.store_servers import postgres_server
from tests.tiers import SERVER_ADDRESS
from waystation.client import Invocation
from waystation.testing import serving
from waystation.tools.tool_context import ToolContext

pytestmark = [
    pytest.mark.skipif(SERVER_ADDRESS not in os.environ, reason="runs with `make test-cluster`"),
    pytest.mark.timeout(300),
]
CALLS = 8
"""So many that, in all likelihood, both processes own some of the invocations."""


class Payments:
    """A tool that counts how often it ran for each invocation."""

    def __init__(self) -> None:
        self.count = Counter[str]()

    def pay(self, amount: int, tool_context: ToolContext) -> str:
        """Pay an amount."""
        self.count[tool_context.invocation_id] += 1
        return "paid"


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A cluster whose processes may be killed."""
    with postgres_server(find_postgres()) as url:
        async with running_cluster(build_programs(), tmp_path_factory.mktemp("cluster"), url) as cluster:
            yield cluster


async def approve_and_finish(invocation: Invocation) -> str:
    """Approve the only call of an invocation, and return the status in which the invocation ends."""
    await waiting(invocation, "fc-1")
    await invocation.approve()
    return (await invocation.result()).status


@pytest.mark.parametrize("lost", [0, 1])
async def test_invocations_start_and_continue_on_the_other_process(cluster: Cluster, tmp_path: Path, lost: int) -> None:
    """Calls that waited are answered, new invocations start, and each tool runs once."""
    payments = Payments()
    async with serving(payer(payments.pay), server=server_at(cluster.address), store=tmp_path) as env:
        invocations = [await env.client.start("payer", "go") for _ in range(CALLS)]
        await listed(env.client, CALLS, agent="payer")
        cluster.kill_server(cluster.hosts[lost])
        invocations += [await env.client.start("payer", "go") for _ in range(CALLS)]
        statuses = await asyncio.gather(*map(approve_and_finish, invocations))
        await cluster.start_server(cluster.hosts[lost])
    assert set(statuses) == {"completed"}
    assert payments.count == {invocation.id: 1 for invocation in invocations}
