"""Sides on one server, measured in turns, each by its own processes."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from benchmarks.side import EXTRA_OPTIONS, Scenario
from waystation.client import connect
from waystation.embedded import EmbeddedServer

ComparedT = TypeVar("ComparedT")
SampleT = TypeVar("SampleT")

PEERS = sorted(path.stem for path in Path(__file__).with_name("peers").glob("*.py"))
"""The engines that the table can show beside Waystation."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of samples, and what to compare with."""

    pairs: int = 15
    quick: bool = False
    """Whether to do less than a row's name says."""
    peers: Mapping[str, str] = field(default_factory=dict)
    """The Python interpreters of other engines, by the names of their modules in `peers`."""

    def report_progress(self, text: str) -> None:
        """Print what is being measured."""
        print(f"… {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """The measurements of one side on one request."""

    times_s: Sequence[float]
    client_cpu_s: float
    worker_cpu_s: float
    ids: Sequence[str]
    elapsed_s: float = 0.0

    @property
    def time_ms(self) -> float:
        """The median time of an invocation, an answer or a replay."""
        return median(self.times_s) * 1e3

    @property
    def cpu_ms(self) -> float:
        """The CPU time of client and workers per invocation."""
        return (self.client_cpu_s + self.worker_cpu_s) / len(self.ids) * 1e3

    @property
    def worker_cpu_ms(self) -> float:
        """The CPU time of the workers per invocation."""
        return self.worker_cpu_s / len(self.ids) * 1e3

    @property
    def rate(self) -> float:
        """Invocations per second."""
        return len(self.ids) / self.elapsed_s


class SideProcess:
    """The client process of a side, which starts the worker processes; see `benchmarks.side`."""

    def __init__(
        self, module: str, address: str, *, workers: int = 1, python: str = sys.executable, options: Sequence[str] = ()
    ) -> None:
        """Start the process. `options` are further options of the engine's workers."""
        self.name = module.rpartition(".")[2]
        self.queue = f"{self.name}-{uuid.uuid4().hex[:6]}"
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.side", module, address, self.queue, str(workers)],
            stdin=subprocess.PIPE,  # the process ends at its end, so also when this process is killed
            stdout=subprocess.PIPE,
            env={**os.environ, EXTRA_OPTIONS: shlex.join(options)},
            text=True,
        )
        self.worker_pids: Sequence[int] = ()

    async def ready(self) -> Self:
        """Wait until the workers poll."""
        self.worker_pids = (await self._read())["pids"]
        return self

    async def run(self, scenario: Scenario, count: int, *, in_flight: int = 1) -> Sample:
        """Measure `count` invocations, `in_flight` at a time."""
        return await self._ask(what="run", scenario=scenario.text(), count=count, in_flight=in_flight)

    async def approve(self, scenario: Scenario, count: int) -> Sample:
        """Measure `count` approvals, one after another, from the answer to the result."""
        return await self._ask(what="approve", scenario=scenario.text(), count=count)

    async def replay(self, id: str, times: int) -> Sample:
        """Measure the replay of an invocation."""
        return await self._ask(what="replay", id=id, times=times)

    async def _ask(self, **request: Any) -> Sample:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Sample(**await self._read())

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line:
            raise RuntimeError(f"The side {self.name!r} ended with exit code {self._process.wait()}.")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def end(self) -> None:
        """End the client process, which kills its workers."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The floor, the engine and its peers, ready to be measured."""

    server: EmbeddedServer
    client: Client
    floor: SideProcess
    engine: SideProcess
    peers: Sequence[SideProcess]

    async def in_turns(
        self, pairs: int, measure: Callable[[SideProcess], Awaitable[Sample]], *, warm_up: int = 2
    ) -> dict[SideProcess, list[Sample]]:
        """Measure all sides `pairs` times, in an order that is reversed each time."""
        return await in_turns([self.floor, self.engine, *self.peers], pairs, measure, warm_up=warm_up)

    async def history(self, id: str) -> WorkflowHistory:
        """Return the history of an invocation."""
        return await self.client.get_workflow_handle(id).fetch_history()


async def in_turns(
    sides: Sequence[ComparedT], pairs: int, measure: Callable[[ComparedT], Awaitable[SampleT]], *, warm_up: int = 2
) -> dict[ComparedT, list[SampleT]]:
    """Measure sides `pairs` times, in an order that is reversed each time. The first `warm_up` rounds do not count."""
    samples: dict[ComparedT, list[SampleT]] = {side: [] for side in sides}
    for number in range(pairs + warm_up):
        for side in sides if number % 2 == 0 else reversed(sides):
            sample = await measure(side)
            if number >= warm_up:
                samples[side].append(sample)
    return samples


async def at_once(
    sides: Sequence[ComparedT], pairs: int, measure: Callable[[ComparedT], Coroutine[Any, Any, SampleT]]
) -> dict[ComparedT, list[SampleT]]:
    """Measure sides `pairs` times, all at the same time. The first round does not count.

    For CPU time, this is more precise than taking turns, because the speed of a machine may change within seconds. But
    the sides share the processor's caches, which larger programs need more of.
    """
    rounds = [await asyncio.gather(*map(measure, sides)) for _ in range(pairs + 1)]
    return dict(zip(sides, map(list, zip(*rounds[1:], strict=True)), strict=True))


@asynccontextmanager
async def sides(plan: Plan) -> AsyncIterator[Comparison]:
    """Start a server and all sides; they end with the block."""
    async with EmbeddedServer(metrics=True) as server:
        with ExitStack() as stack:

            def start(module: str, python: str = sys.executable) -> SideProcess:
                side = SideProcess(module, server.address, python=python)
                stack.callback(side.end)
                return side

            if missing := [name for name in PEERS if name not in plan.peers]:
                plan.report_progress(f"The peers {', '.join(missing)} are skipped: no `--peer`.")
            floor, engine = start("benchmarks.floor"), start("benchmarks.engine")
            await asyncio.gather(floor.ready(), engine.ready())
            peers = []
            for name, python in plan.peers.items():
                try:
                    peers.append(await start(f"benchmarks.peers.{name}", python).ready())
                except (OSError, RuntimeError) as error:  # no interpreter, or a package is missing
                    plan.report_progress(f"The peer {name!r} is skipped: {error}")
            client = await connect(address=server.address)
            yield Comparison(server, client, floor, engine, peers)


def count_events(history: WorkflowHistory) -> dict[str, int]:
    """Count a history's events, their bytes, its payloads, its workflow tasks and its activities."""
    kinds = [event.event_type for event in history.events]
    return {
        "events": len(kinds),
        "bytes": sum(event.ByteSize() for event in history.events),
        # Each payload's metadata has the key "encoding" once: field 1 of a map entry, with eight bytes.
        "payloads": sum(event.SerializeToString().count(b"\x0a\x08encoding") for event in history.events),
        "workflow tasks": kinds.count(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED),
        "activities": kinds.count(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED),
    }
