"""Pending calls: ten thousand of them on one worker, and answers right after a worker was killed."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable

from benchmarks.comparison import Plan
from benchmarks.engine import AGENT, CALL, memory_mb, worker
from benchmarks.side import APPROVE, ONE
from benchmarks.table import Row, p95
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.core.contract import SEARCH_STATUS
from waystation.embedded import EmbeddedServer
from waystation.worker import WORKER_OPTIONS

WAITING = 10_000
IN_FLIGHT = 50
PAGE = 100
KILLS = 20
QUEUE = "approvals"

CACHED: int = WORKER_OPTIONS["max_cached_workflows"]
WAITING_MEMORY = "worker memory per cached call that waits"


async def waiting(plan: Plan) -> list[Row]:
    """Measure the memory of a worker whose invocations wait, and how fast their calls are listed and answered."""
    count = 1_000 if plan.quick else WAITING
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        async with worker(client) as process:
            idle_mb = memory_mb([process.pid])
            ids = await start_waiting(client, count)
            full_mb = [memory_mb([process.pid])]
            pages = [await _time_ms(client.approvals.list(limit=PAGE)) for _ in range(plan.pairs)]
            answers = list[float]()
            for id in ids[:: len(ids) // plan.pairs][: plan.pairs]:
                answers.append(await _time_ms(_answer(client, id)))
                full_mb.append(memory_mb([process.pid]))
    name = f"{count:,} calls wait"
    return [
        Row(
            name=f"{name}: memory of their worker",
            samples=full_mb,
            unit="MB",
            goal=150,
            aim=120,
            note=f"idle: {idle_mb:.0f} MB",
        ),
        Row(name=WAITING_MEMORY, samples=[(mb - idle_mb) / min(count, CACHED) * 1e3 for mb in full_mb], unit="kB"),
        Row(name=f"{name}: a page of {PAGE}", samples=pages, unit="ms"),
        Row(
            name=f"{name}: answer to result",
            samples=answers,
            unit="ms",
            note="most are no longer in the worker's memory",
        ),
    ]


async def start_waiting(client: AgentClient, count: int) -> list[str]:
    """Start `count` invocations, wait until all have a pending call, and return their IDs."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def start() -> str:
        async with slots:
            return (await client.start(AGENT, APPROVE.text())).id

    ids = await asyncio.gather(*(start() for _ in range(count)))
    query = f"{SEARCH_STATUS} = 'waiting'"
    while (await client.temporal.count_workflows(query)).count < count:  # noqa: ASYNC110  # no event for it
        await asyncio.sleep(0.2)
    return ids


async def _answer(client: AgentClient, id: str) -> None:
    invocation = client.invocation(id)
    await invocation.approve(CALL)
    await invocation.result()


async def _time_ms(step: Awaitable[object]) -> float:
    started = time.perf_counter()
    await step
    return (time.perf_counter() - started) * 1e3


async def kill(plan: Plan) -> list[Row]:
    """Measure the first answer after a worker was killed and another one was started at once."""
    kills = 5 if plan.quick else KILLS
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)

        async def pending_call() -> Callable[[], Awaitable[object]]:
            """Let a call wait; the worker has nothing to do when it is killed."""
            [id] = await start_waiting(client, 1)
            await asyncio.sleep(0.1)
            return lambda: _answer(client, id)

        async def reply() -> Callable[[], Awaitable[object]]:
            """Receive a reply; the worker may still complete a workflow task when it is killed."""
            session = client.session(agent=AGENT, session_id=uuid.uuid4().hex)
            await session.say(ONE.text())
            return lambda: session.say(ONE.text())

        idle = [await _after_kill_s(client, pending_call) for _ in range(kills)]
        busy = [await _after_kill_s(client, reply) for _ in range(kills)]
    name = f"killed {kills} times, new worker at once: 95th percentile until a"
    note = f"slowest {max(idle):.2f} s; starting the worker included"
    return [
        Row(name=f"{name} pending call's result", samples=idle, statistic=p95, unit="s", goal=1.1, note=note),
        Row(
            name=f"{name} session's next reply",
            samples=busy,
            statistic=p95,
            unit="s",
            goal=5.5,
            note=f"killed right after a reply; slowest {max(busy):.2f} s",
        ),
    ]


async def _after_kill_s(
    client: AgentClient, prepare: Callable[[], Awaitable[Callable[[], Awaitable[object]]]]
) -> float:
    """Return the time from the end of one worker to the first answer of the next."""
    async with worker(client):
        act = await prepare()
    started = time.perf_counter()
    async with worker(client, wait=False):
        await act()
        return time.perf_counter() - started
