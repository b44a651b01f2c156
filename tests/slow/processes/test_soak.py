"""A worker that serves thousands of invocations."""

import asyncio

import psutil
import pytest

from tests.server.processes.workers import Place, plan
from waystation.client.agent_client import AgentClient

AT_ONCE = 20


@pytest.mark.timeout(3_600)
async def test_a_worker_takes_no_more_after_its_first_thousand_invocations(place: Place, client: AgentClient) -> None:
    """Caches and pools of threads are full by then. Memory that grows after that would end a worker some day."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def run() -> None:
        async with slots:
            invocation = await client.start("planned", plan([("remember", {"word": "x"})]))
            await invocation.result()

    sizes = []
    async with place.worker() as worker:
        process = psutil.Process(worker.pid)
        for _ in range(3):
            await asyncio.gather(*(run() for _ in range(1_000)))
            sizes.append((process.memory_full_info().uss / 1e6, process.num_threads()))
    (first_mb, first_threads), *_, (last_mb, last_threads) = sizes
    assert last_mb - first_mb < 8, sizes
    assert last_threads - first_threads <= AT_ONCE // 4, sizes
