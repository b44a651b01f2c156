"""Measure how CPU time and history of a step or message grow with the length of an invocation or a session."""

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from benchmarks.comparison import Plan
from benchmarks.engine import AGENT, worker
from benchmarks.side import Scenario, cpu_s
from benchmarks.table import Row, ratio, ratios
from waystation.client import Session, connect
from waystation.client.agent_client import AgentClient
from waystation.core.budget import Budget
from waystation.core.projection import MODEL
from waystation.embedded import EmbeddedServer

STEPS = 4_000
MESSAGES = 1_000
INVOCATIONS = 200
QUEUE = "growth"
EARLY = 10
TURN = f"{Scenario(size=1_000, final=500).text()} ".ljust(200, "x")
"""The message of a session whose turn has 1.8 kB of content: itself, a tool result and an answer."""


async def steps(plan: Plan) -> list[Row]:
    """Compare a late step of one invocation with an early one; each has a result of 1.8 kB."""
    count = 400 if plan.quick else STEPS
    scenario = Scenario(steps=count + EARLY, size=1_800)
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        async with worker(client):
            started = time.perf_counter()
            invocation = await client.start(AGENT, scenario.text(), budget=Budget(max_llm_calls=scenario.steps + 1))
            text = (await invocation.result()).text
            elapsed_s = time.perf_counter() - started
            histories = await invocation.histories()
        started = time.perf_counter()
        await invocation.log()
        read_s = time.perf_counter() - started
    at_calls = [float(word) for word in text.split()]
    used = [after - before for before, after in pairwise(at_calls)]
    events = [event for history in histories for event in history.events]
    kilobytes = sum(event.ByteSize() for event in events) / 1e3
    cpu = [_window(used, at, plan.pairs) for at in (EARLY, count)]
    sizes = [sum(event.ByteSize() for event in step) for step in split_steps(events)]
    size = [_window(sizes, at, EARLY) for at in (EARLY, count)]
    name = f"step {count:,} to step {EARLY} of an invocation"
    return [
        Row(
            name=f"worker CPU of {name}",
            samples=ratios(*cpu),
            goal=1.5,
            aim=1.1,
            note=f"{median(cpu[1]):.1f} ms to {median(cpu[0]):.1f} ms; {elapsed_s:.0f} s in all",
        ),
        Row(
            name=f"bytes of {name}",
            samples=[median(size[1]) / median(size[0])],
            exact=True,
            goal=1.1,
            note=f"{median(size[1]):,.0f} B to {median(size[0]):,.0f} B; the result has 1,800 B",
        ),
        Row(
            name=f"history of {scenario.steps:,} steps",
            samples=[kilobytes],
            unit="kB",
            note=f"{len(events):,} events in {len(histories)} runs; read into a log in {read_s:.1f} s",
        ),
    ]


def _window(values: Sequence[float], at: int, size: int) -> Sequence[float]:
    """Return `size` values around a position."""
    start = max(0, at - size // 2)
    return values[start : start + size]


def split_steps(events: Sequence[HistoryEvent]) -> list[list[HistoryEvent]]:
    """Return the events of each step: from one scheduled model call to the next."""
    steps: list[list[HistoryEvent]] = []
    for event in events:
        if event.activity_task_scheduled_event_attributes.activity_type.name == MODEL.name:
            steps.append([])
        if steps:
            steps[-1].append(event)
    return steps


async def database(plan: Plan) -> list[Row]:
    """Measure by how much invocations with one tool call enlarge the database of the embedded server."""
    count = 50 if plan.quick else INVOCATIONS
    with TemporaryDirectory() as folder:
        path = Path(folder) / "temporal.db"
        async with EmbeddedServer(db_filename=path) as server:
            client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
            async with worker(client):
                await client.run(AGENT, Scenario().text())
                before = _database_bytes(path)
                for _ in range(count // EARLY):
                    await asyncio.gather(*(client.run(AGENT, Scenario().text()) for _ in range(EARLY)))
                growth = _database_bytes(path) - before
    return [
        Row(
            name="database of the embedded server, for each invocation",
            samples=[growth / count / 1e3],
            unit="kB",
            note=f"one tool call; the mean of {count} invocations",
        )
    ]


def _database_bytes(path: Path) -> int:
    """Return the size of a database in use, with what is only in its log so far."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        [[pages]], [[page_bytes]] = (connection.execute(f"PRAGMA {name}") for name in ("page_count", "page_size"))
    return int(pages * page_bytes)


async def session(plan: Plan) -> list[Row]:
    """Compare a late message of a session with an early one, and with an invocation without a session."""
    count = 100 if plan.quick else MESSAGES
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        async with worker(client) as process:
            old = _session(client)
            for _ in range(count):
                await old.say(TURN)
            early, late, direct = list[tuple[float, float]](), list[tuple[float, float]](), list[tuple[float, float]]()
            young = await _young_session(client)
            for number in range(2 * plan.pairs):
                if number and number % EARLY == 0:
                    young = await _young_session(client)
                early.append(await _measure(young.say(TURN), process.pid))
                late.append(await _measure(old.say(TURN), process.pid))
                direct.append(await _measure(client.run(AGENT, TURN), process.pid))
            messages = count + 2 * plan.pairs
            size = await _history_bytes(client.temporal, old.id, messages) / messages
            await asyncio.sleep(1)  # no workflow task is in flight when the worker is killed
        async with worker(client) as process:
            first_ms, _ = await _measure(old.say(TURN), process.pid)
    (early_ms, early_cpu), (late_ms, late_cpu), (direct_ms, _) = (zip(*x, strict=True) for x in (early, late, direct))
    name = f"message {count:,} to message {EARLY} of a session"
    return [
        Row(
            name=f"worker CPU of {name}",
            samples=ratios(early_cpu, late_cpu),
            goal=1.15,
            aim=1.05,
            note=f"{median(late_cpu):.1f} ms to {median(early_cpu):.1f} ms; "
            f"{median(late_ms):.0f} ms to {median(early_ms):.0f} ms of time",
        ),
        Row(
            name="history of a message in a session",
            samples=[size / 1e3],
            exact=True,
            unit="kB",
            goal=13,  # see docs/explanation/decisions/0037-conversation-in-the-session.md
            note=f"1.8 kB of content; session and invocation; the mean of {messages:,} messages",
        ),
        ratio("message in a session, to an invocation without one", direct_ms, early_ms, unit_of_sides="ms"),
        Row(name=f"a new worker's first reply after {messages:,} messages", samples=[first_ms], unit="ms"),
    ]


def _session(client: AgentClient) -> Session:
    return client.session(agent=AGENT, session_id=uuid.uuid4().hex)


async def _young_session(client: AgentClient) -> Session:
    """Return a session whose next messages are about number `EARLY`."""
    session = _session(client)
    for _ in range(EARLY // 2):
        await session.say(TURN)
    return session


async def _measure(step: Awaitable[object], pid: int) -> tuple[float, float]:
    """Return the time and the worker's CPU time of a step, in milliseconds."""
    before, started = cpu_s([pid]), time.perf_counter()
    await step
    elapsed_s = time.perf_counter() - started
    # The worker still records that the last workflow tasks are done.
    await asyncio.sleep(0.01)
    return elapsed_s * 1e3, (cpu_s([pid]) - before) * 1e3


async def _history_bytes(client: Client, session: str, messages: int) -> int:
    """Return the size of all histories of a session: of its runs and its invocations."""
    size = 0
    first = (await client.get_workflow_handle(session).describe()).raw_description
    run_id: str | None = first.workflow_execution_info.first_run_id
    while run_id:
        events = (await client.get_workflow_handle(session, run_id=run_id).fetch_history()).events
        size += sum(event.ByteSize() for event in events)
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    for number in range(1, messages + 1):
        described = await client.get_workflow_handle(f"{session}/{number}").describe()
        size += described.raw_description.workflow_execution_info.history_size_bytes
    return size
