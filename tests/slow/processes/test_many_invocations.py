"""Hundreds of random schedules with killed workers, and thousands of invocations of one worker."""

import asyncio
import random
import signal

import psutil
import pytest

from tests.server.processes.workers import Place, plan
from tests.server.workflows.schedules import assert_same_on_replay, follow_schedule
from waystation.client.agent_client import AgentClient


@pytest.mark.timeout(900)  # a killed worker is noticed only when a heartbeat or a workflow task is overdue
@pytest.mark.parametrize("first", range(0, 200, 50))
async def test_killed_workers_change_no_time_and_no_order(place: Place, client: AgentClient, first: int) -> None:
    """Commands, results, entries and their times are those of the first run, however a replay divides the history."""
    draw = random.Random(first)
    schedules = [asyncio.create_task(follow_schedule(client, seed)) for seed in range(first, first + 50)]
    pending: set[asyncio.Task[object]] = set(schedules)
    while pending:
        async with place.worker() as worker:
            _, pending = await asyncio.wait(pending, timeout=draw.uniform(2, 12))
            await worker.stop(draw.choice([signal.SIGKILL, signal.SIGTERM]))
    for invocation in await asyncio.gather(*schedules):
        await assert_same_on_replay(invocation)


@pytest.mark.timeout(3_600)
async def test_a_worker_uses_no_more_after_its_first_thousand_invocations(place: Place, client: AgentClient) -> None:
    """Memory and threads stay constant once the caches are full. Their growth would eventually end a worker."""
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
