"""How many writes per second one `app:` state takes, and how long reads of it take, with four workers."""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

from temporalio.testing import ActivityEnvironment

from benchmarks.comparison import Plan
from benchmarks.engine import worker
from benchmarks.table import Row, p95
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.core.scope_state import APP, ScopeDelta, app_scope
from waystation.embedded import EmbeddedServer
from waystation.history import ScopeReader

QUEUE = "scopes"
WORKERS = 4
IN_FLIGHT = 100
"""Writes that each worker makes at the same time, if it is flooded: as many as it runs activities."""
RATE = 50
DURATION_S, QUICK_S = 10.0, 3.0
RUNS, QUICK_RUNS = 5, 2


async def measure(plan: Plan) -> list[Row]:
    """Measure on the development server."""
    async with EmbeddedServer() as server:
        return await measure_at(server.address, plan)


async def measure_at(address: str, plan: Plan) -> list[Row]:
    """Write at a fixed rate, write as fast as possible, and let many invocations read at the same time."""
    client = AgentClient(await connect(address=address), task_queue=QUEUE)
    runs, duration_s = (QUICK_RUNS, QUICK_S) if plan.quick else (RUNS, DURATION_S)
    async with worker(client):
        await Writers.run(client, "warm", 1.0, at_rate)
        paced = [await Writers.run(client, f"paced-{run}", duration_s, at_rate) for run in range(runs)]
        flooded = [await Writers.run(client, f"flooded-{run}", duration_s, flood) for run in range(runs)]
        reads_ms = [await read_ms(client.temporal.service_client.config.target_host, "flooded-0") for _ in range(runs)]
    delays_ms = [seconds * 1e3 for writers in paced for seconds in writers.delays_s]
    flood_ms = [seconds * 1e3 for writers in flooded for seconds in writers.delays_s]
    shared = median(len(writers.delays_s) / writers.signals for writers in flooded)
    return [
        Row(
            name=f"a write to one `app:` state, {RATE} per second",
            samples=[median(delays_ms)],
            unit="ms",
            note=f"95th percentile {p95(delays_ms):.0f} ms, {WORKERS} workers; "
            f"{sum(w.signals for w in paced)} signals for {len(delays_ms)} writes",
        ),
        Row(
            name=f"writes to one `app:` state, {WORKERS * IN_FLIGHT} at a time",
            samples=[len(writers.delays_s) / writers.took_s for writers in flooded],
            unit="/s",
            goal=RATE,
            at_least=True,
            note=f"{shared:.0f} writes in a signal; a write takes {median(flood_ms):.0f} ms, "
            f"95th percentile {p95(flood_ms):.0f} ms",
        ),
        Row(
            name=f"first reads of one `app:` state, {IN_FLIGHT} at a time",
            samples=reads_ms,
            unit="ms",
            note="until the last has the state, in a new worker",
        ),
    ]


class Writers:
    """Deliveries of invocations to one `app:` state, as the activities of four workers make them."""

    def __init__(self, keepers: Sequence[ScopeKeeper], app: str) -> None:
        self.app, self.scope_id = app, app_scope(app)
        self.delays_s: list[float] = []
        self.took_s = 0.0
        self.signals = 0
        self._keepers = keepers
        self._numbers = itertools.count()
        self._expected: dict[str, int] = {}

    @classmethod
    async def run(
        cls, client: AgentClient, app: str, duration_s: float, write: Callable[["Writers", float], Awaitable[None]]
    ) -> "Writers":
        """Write for some time, and check that every write was applied once, in order."""
        address = client.temporal.service_client.config.target_host
        logs: Any = None  # used only to read what invocations have written
        writers = cls([ScopeKeeper(await connect(address=address), logs) for _ in range(WORKERS)], app)
        started = time.perf_counter()
        await write(writers, duration_s)
        writers.took_s = time.perf_counter() - started
        state = (await ScopeReader(client.temporal).read(writers.scope_id)).state
        assert state == writers._expected, "A write was lost, or was applied again."
        writers.signals = await count_signals(client, writers.scope_id)
        return writers

    async def write(self, slot: int) -> None:
        """Write the next number under the key of a slot, as an invocation of its own, in the worker of the slot."""
        number = next(self._numbers)
        key = f"{APP}{slot}"
        self._expected[key] = number
        delta = ScopeDelta(id=f"invocation-{number}/e1", run=f"run-{number}", set={key: number})
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, task_queue=QUEUE)
        keeper = self._keepers[slot % WORKERS]
        started = time.perf_counter()
        refused = await environment.run(keeper._send_together, self.scope_id, self.app, [delta])
        self.delays_s.append(time.perf_counter() - started)
        assert not refused


async def at_rate(writers: Writers, duration_s: float) -> None:
    """Write at the rate, whether or not earlier writes are done. Each has a key of its own."""
    writes = []
    started = time.perf_counter()
    for number in range(round(RATE * duration_s)):
        await asyncio.sleep(started + number / RATE - time.perf_counter())
        writes.append(asyncio.create_task(writers.write(number)))
    await asyncio.gather(*writes)


async def flood(writers: Writers, duration_s: float) -> None:
    """Keep as many writes in flight as all workers together run activities."""
    deadline = time.perf_counter() + duration_s

    async def keep_writing(slot: int) -> None:
        while time.perf_counter() < deadline:
            await writers.write(slot)

    await asyncio.gather(*map(keep_writing, range(WORKERS * IN_FLIGHT)))


async def count_signals(client: AgentClient, scope_id: str) -> int:
    """Count the signals in all runs of a scope."""
    handle = client.temporal.get_workflow_handle(scope_id)
    run_id = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    signals = 0
    while run_id:
        events = (await client.temporal.get_workflow_handle(scope_id, run_id=run_id).fetch_history()).events
        signals += sum(event.HasField("workflow_execution_signaled_event_attributes") for event in events)
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return signals


async def read_ms(address: str, app: str) -> float:
    """Return how long a worker without a cache takes to read a state for many invocations that start together."""
    reader = ScopeReader(await connect(address=address))
    started = time.perf_counter()
    await asyncio.gather(*(reader.read(app_scope(app)) for _ in range(IN_FLIGHT)))
    return (time.perf_counter() - started) * 1e3
