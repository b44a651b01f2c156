"""Floor and engine on one server, measured in turns. Each has its own worker process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio.client import Client, WorkflowHistory

from benchmarks.engine import Engine
from benchmarks.floor import Findable, Floor
from benchmarks.process import WorkerProcess
from benchmarks.quiet import Machine
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer

Side = Floor | Engine


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, ready to be measured."""

    client: Client
    floor: Floor
    findable: Floor
    """The floor with published pending calls, served by the same worker."""
    engine: Engine
    workers: dict[Side, WorkerProcess]
    machine: Machine

    async def in_turns(
        self, turns: int, measure: Callable[[Side], Awaitable[float]], *, findable: bool = False
    ) -> list[list[float]]:
        """Measure floor and engine `turns` times: in ABBA order, because the order matters.

        Returns the samples of each; with `findable`, those of `Sides.findable` are in the middle.
        """
        order: list[Side] = [self.floor, *([self.findable] if findable else ()), self.engine]
        samples: dict[Side, list[float]] = {side: [] for side in order}
        for turn in range(turns):
            for side in order if turn % 2 == 0 else reversed(order):
                samples[side].append(await self._undisturbed(measure, side))
        return list(samples.values())

    async def _undisturbed(self, measure: Callable[[Side], Awaitable[float]], side: Side) -> float:
        return await self.machine.undisturbed(lambda: measure(side))

    async def history(self, id: str) -> WorkflowHistory:
        """Return the history of an invocation of either side."""
        return await self.client.get_workflow_handle(id).fetch_history()

    async def histories(self, id: str) -> list[WorkflowHistory]:
        """Return the histories of all runs of an invocation of the engine's side."""
        return await AgentClient(self.client).invocation(id).histories()


@asynccontextmanager
async def sides(*, patience_s: float) -> AsyncIterator[Sides]:
    """Start a server, and a worker process for each side; all end with the block."""
    async with EmbeddedServer() as server:
        client = await connect(address=server.address)
        floor, engine = Floor(client), Engine(client)
        workers: dict[Side, WorkerProcess] = {
            floor: WorkerProcess("benchmarks.floor", server.address),
            engine: WorkerProcess("benchmarks.engine", server.address),
        }
        try:
            await asyncio.gather(*(worker.ready() for worker in workers.values()))
            machine = Machine([server.pid, *(worker.pid for worker in workers.values())], patience_s=patience_s)
            yield Sides(client, floor, Floor(client, Findable), engine, workers, machine)
        finally:
            for worker in workers.values():
                worker.kill()


async def duration_ms(step: Awaitable[object]) -> float:
    """Measure the duration of a step."""
    started = time.perf_counter()
    await step
    return (time.perf_counter() - started) * 1e3
