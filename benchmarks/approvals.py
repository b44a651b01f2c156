"""Approvals at scale: ten thousand pending calls, and approvers who answer while workers are killed."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from temporalio.client import Client

from benchmarks.engine import AGENT, Engine
from benchmarks.floor import Floor
from benchmarks.plan import Plan
from benchmarks.process import WorkerProcess
from benchmarks.scenario import APPROVE
from benchmarks.sides import sides
from benchmarks.table import Row, ratio
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.core import SEARCH_STATUS, AlreadyAnswered, AnswerCounted, AnswerUnconfirmed, UnknownCall
from waystation.embedded import EmbeddedServer

PARKED = 10_000
ANSWERED = 1_000
APPROVERS = 20
KILLS = 50
PAGE = 100
MAX_WORKER_MB = 250
STARTING = 50
"""How many invocations start at the same time."""


async def measure(plan: Plan) -> list[Row]:
    """Measure how fast pending calls are listed and answered, and that each answer counts once."""
    parked, answered, kills = (1_000, 200, 10) if plan.quick else (PARKED, ANSWERED, KILLS)
    return [
        *await _measure_pending(plan, parked),
        *await _measure_rates(plan),
        *await _measure_kills(plan, answered, kills),
    ]


# Many pending calls.


async def _measure_pending(plan: Plan, count: int) -> list[Row]:
    plan.report_progress(f"{count:,} calls wait in one namespace")
    async with EmbeddedServer() as server, _worker(server.address) as worker:
        client = await connect(address=server.address)
        engine, agents = Engine(client), AgentClient(client)
        await _start_waiting(engine, client, count)
        memory = worker.process.memory_mb()
        pages = [await _time_ms(agents.approvals.list(limit=PAGE)) for _ in range(20)]
        started, listed = time.perf_counter(), 0
        async for _ in agents.approvals.each():
            listed += 1
        whole_s = time.perf_counter() - started
        calls = [call async for call in agents.approvals.each(agent=AGENT)]
        answers = [await _time_ms(_approve(engine, call.invocation_id)) for call in calls[:: max(1, count // 50)]]
    return [
        Row(name=f"{count:,} calls wait: a page of {PAGE}", value=median(pages), unit="ms", note="`client.approvals`"),
        Row(name="… all of them listed", value=whole_s, unit="s", fact=listed == count, note=f"{listed:,} listed"),
        Row(name="… memory of their worker", value=memory, unit="MB", goal=MAX_WORKER_MB),
        Row(
            name="… an early one is answered, to its result",
            value=median(answers),
            unit="ms",
            note="most are no longer in the worker's memory",
        ),
    ]


async def _start_waiting(engine: Engine, client: Client, count: int) -> list[str]:
    """Start `count` invocations, wait until all have a pending call, and return their ids."""
    slots = asyncio.Semaphore(STARTING)

    async def start() -> str:
        async with slots:
            return (await engine.start(APPROVE)).id

    ids = await asyncio.gather(*(start() for _ in range(count)))
    query = f"{SEARCH_STATUS} = 'waiting'"
    while (await client.count_workflows(query)).count < count:  # noqa: ASYNC110  # no event
        await asyncio.sleep(0.2)
    return ids


async def _approve(engine: Engine, id: str) -> None:
    await engine.approve(id, signal=False)


async def _time_ms(step: Awaitable[object]) -> float:
    started = time.perf_counter()
    await step
    return (time.perf_counter() - started) * 1e3


# Answers per second.


async def _measure_rates(plan: Plan) -> list[Row]:
    turns, count = (2, 50) if plan.quick else (6, 200)
    plan.report_progress(f"{count} calls are answered at once, {turns} times on each side")
    async with sides(patience_s=plan.patience_s) as both:

        async def one(side: Floor | Engine) -> float:
            waiting = await asyncio.gather(*(side.start_waiting() for _ in range(count)))
            # The server finishes its work on the new invocations first; it is not part of the answers.
            await asyncio.sleep(1)
            started = time.perf_counter()
            await asyncio.gather(*(side.approve(id) for id in waiting))
            return time.perf_counter() - started

        floor, findable, engine = await both.in_turns(turns, one, findable=True)

    def compare(hand_written: list[float], name: str, goal: float | None, note: str) -> Row:
        rates = f"{count / median(engine):.0f} answers/s, hand-written {count / median(hand_written):.0f}"
        return ratio(name, hand_written, engine, unit="s", goal=goal, note=f"{rates}; {note}")

    return [
        compare(findable, f"{count} calls answered at once, to their results", 1.25, "1.25 is 0.8 of the rate"),
        compare(floor, "… against one that does not publish pending calls", None, "no list of approvals would find it"),
    ]


# Killed workers.


async def _measure_kills(plan: Plan, count: int, kills: int) -> list[Row]:
    plan.report_progress(
        f"{APPROVERS} approvers answer {count:,} calls, twice each, while workers are killed {kills} times"
    )
    with tempfile.TemporaryDirectory() as folder:
        witness = Path(folder, "danger")
        async with EmbeddedServer() as server, _worker(server.address, str(witness)) as worker:
            client = await connect(address=server.address)
            engine = Engine(client)
            waiting = await _start_waiting(engine, client, count)
            started = time.perf_counter()
            results = await _answer_all(AgentClient(client), waiting, worker, kills)
            for id in waiting:
                await AgentClient(client).invocation(id).result()
            took_s = time.perf_counter() - started
            counts = [await engine.count(id, AnswerCounted) for id in waiting]
        ran = Counter(_lines(witness))
    once = sum(count == 1 for count in counts)
    twice = sum(times > 1 for times in ran.values())
    return [
        Row(
            name=f"{count:,} calls, {APPROVERS} approvers who click twice, workers killed {kills} times",
            value=once,
            unit="answered once",
            fact=once == count and not twice,
            note=f"in {took_s:.0f} s; {twice} ran twice; {count - len(ran)} were interrupted and not repeated",
        ),
        Row(
            name="… results that the approvers received",
            value=results["accepted"],
            unit="accepted",
            note=", ".join(f"{kind}: {times}" for kind, times in sorted(results.items())),
        ),
    ]


def _lines(witness: Path) -> list[str]:
    return witness.read_text().split()


async def _answer_all(client: AgentClient, waiting: list[str], worker: "RestartableWorker", kills: int) -> Counter[str]:
    """Approve every call twice at the same time, by parallel approvers; count the results."""
    results = Counter[str]()
    left: Iterator[str] = iter(waiting)
    killed = 0

    async def click(id: str) -> None:
        while True:
            try:
                await client.approvals.approve(f"{id}/fc-1", by="approver")
            except AnswerUnconfirmed:
                results["unconfirmed, repeated"] += 1
                continue
            except (AlreadyAnswered, UnknownCall) as error:
                results[type(error).__name__] += 1
            else:
                results["accepted"] += 1
            return

    async def approver() -> None:
        for id in left:
            await asyncio.gather(click(id), click(id))
            # All kills must happen while calls are pending.
            while killed * len(waiting) < (results["accepted"] - APPROVERS) * kills:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)

    people = asyncio.gather(*(approver() for _ in range(APPROVERS)))
    while killed < kills:
        await worker.restart()
        killed += 1
        await asyncio.sleep(0.3)
    await people
    return results


class RestartableWorker:
    """A worker process that can be killed and started again."""

    def __init__(self, address: str, *witness: str) -> None:
        self._arguments = ("benchmarks.engine", address, *witness)
        self.process: WorkerProcess

    async def restart(self) -> None:
        """Kill the worker and start another."""
        self.process.kill()
        await self.begin()

    async def begin(self) -> None:
        """Start a worker process."""
        self.process = await WorkerProcess(*self._arguments).ready()


@asynccontextmanager
async def _worker(address: str, *witness: str) -> AsyncIterator[RestartableWorker]:
    worker = RestartableWorker(address, *witness)
    await worker.begin()
    try:
        yield worker
    finally:
        worker.process.kill()
