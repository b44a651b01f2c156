"""A worker that serves thousands of invocations."""

import asyncio

import psutil
import pytest

from tests.server.processes.workers import Place, plan
from waystation.client.agent_client import AgentClient


@pytest.mark.timeout(3_600)
async def test_a_worker_takes_no_more_after_its_first_thousand_invocations(place: Place, client: AgentClient) -> None:
    """Its caches are full by then. Memory or threads that grow after that would end a worker some day."""
    sizes = []
    async with place.worker() as worker:
        process = psutil.Process(worker.pid)
        # The pool for tools gets a thread whenever all are busy, up to one for each concurrent call. With fewer calls
        # at once than before, it does not grow.
        for at_once in (40, 20, 20):
            slots = asyncio.Semaphore(at_once)

            async def run(slots: asyncio.Semaphore = slots) -> None:
                async with slots:
                    invocation = await client.start("planned", plan([("remember", {"word": "x"})]))
                    await invocation.result()

            await asyncio.gather(*(run() for _ in range(1_000)))
            sizes.append((process.memory_full_info().uss / 1e6, process.num_threads()))
    (first_mb, first_threads), *_, (last_mb, last_threads) = sizes
    assert last_mb - first_mb < 8, sizes
    assert last_threads - first_threads <= 3, sizes
