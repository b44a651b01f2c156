"""Two server processes: the loss of one, and conversations with immediate replies."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.approvals.asking import listed, payer
from tests.server.conftest import server_at
from tests.steps import wait_for_calls
from tests.store_servers import postgres_server
from tests.tiers import SERVER_ADDRESS, find_cluster
from verification.cluster.temporal_cluster import Cluster, build_programs, find_postgres, running_cluster
from waystation.agents import Agent
from waystation.client import Invocation
from waystation.models import LlmRequest
from waystation.replay import replay
from waystation.testing import FunctionModel, calls, says, serving
from waystation.testing.models import Reply, latest_turn
from waystation.tools import FunctionTool
from waystation.tools.tool_context import ToolContext

pytestmark = [
    pytest.mark.skipif(SERVER_ADDRESS not in os.environ, reason="runs with `make test-cluster`"),
    pytest.mark.timeout(300),
]
CALLS = 8
"""Enough that both processes almost certainly own some of the invocations."""
MESSAGES = 120
"""Enough that some arrive before the server has reported the end of the previous turn to the session."""


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
    await wait_for_calls(invocation, "fc-1")
    await invocation.approve()
    return (await invocation.result()).status


@pytest.mark.parametrize("lost", [0, 1])
async def test_invocations_start_and_continue_on_the_other_process(cluster: Cluster, tmp_path: Path, lost: int) -> None:
    """After the loss of a process, pending calls are answered, new invocations start, and each tool runs once."""
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


def count(tool_context: ToolContext) -> dict[str, int]:
    """Count the turns of the session and those of the user."""
    counts = {key: tool_context.state.get(key, 0) + 1 for key in ("turns", "user:turns")}
    tool_context.state.update(counts)
    return counts


@pytest.mark.timeout(900)
@pytest.mark.parametrize("asks", [True, False])
async def test_each_message_has_the_turn_before_it(tmp_path: Path, asks: bool) -> None:
    """A message that is sent right after a result is accepted, and sees the previous turn's state and last event."""
    preceding: list[str] = []

    def clerk(request: LlmRequest) -> Reply:
        if answered := latest_turn(request)[1]:
            return says(f"{answered[-1][1]}")
        texts = [part["text"] for content in request.contents for part in content["parts"] if "text" in part]
        preceding.append(["", *texts][-2])
        return calls(("count", {}))

    agent = Agent(name="clerk", model=FunctionModel(clerk), tools=[FunctionTool(count, require_confirmation=asks)])
    server = server_at(find_cluster() or "")
    async with serving(agent, server=server, store=tmp_path, max_cached_workflows=10) as env:
        session = env.client.session(agent="clerk", session_id="s", user_id="ann", app=env.client.task_queue)
        said: list[str] = []
        for _ in range(MESSAGES):
            sent = await session.send("next", when_busy="reject")
            if asks:
                await wait_for_calls(await sent.invocation(), "fc-1")
                await sent.approve()
            said.append((await sent.result()).text)
        assert said == [str({"turns": turn, "user:turns": turn}) for turn in range(1, MESSAGES + 1)]
        assert preceding == ["", *said[:-1]]
        await replay(await session.handle.fetch_history(), converter=env.temporal.data_converter)
