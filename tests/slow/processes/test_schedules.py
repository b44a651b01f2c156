"""Drawn schedules, in which workers are killed and replaced, are the same on replay."""

import asyncio
import random
import signal

import pytest

from tests.server.processes.workers import Place
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
