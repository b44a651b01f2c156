"""Sessions: a message against a direct invocation, many sessions at the same time, and long sessions.

python -m benchmarks.conversations ADDRESS     a worker process whose model replies at once
"""

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from statistics import median, quantiles

from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.plan import Plan
from benchmarks.process import WorkerProcess, run_until_orphaned
from benchmarks.quiet import Machine
from benchmarks.table import Row
from waystation.agents import Agent
from waystation.agents.registry import Registry
from waystation.client import Session, connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.testing import FunctionModel, says
from waystation.worker import create_worker

QUEUE = "conversations"
AGENT = "clerk"
MESSAGE = "Where is my order? I have been waiting for it since Monday."
ANSWER = "It is on its way and will be with you tomorrow before noon."


async def measure(plan: Plan) -> list[Row]:
    """Measure the cost of messages in sessions."""
    plan.report_progress("conversations")
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        worker = await WorkerProcess("benchmarks.conversations", server.address).ready()
        try:
            machine = Machine([server.pid, worker.pid], patience_s=plan.patience_s)
            rows = await _ratio(client, machine, turns=20 if plan.quick else 100)
            rows.append(await _many(client, sessions=10 if plan.quick else 100, messages=20))
            session, long_rows = await _long(client, messages=200 if plan.quick else 2_000)
            rows.extend(long_rows)
        finally:
            worker.kill()
        cold = await WorkerProcess("benchmarks.conversations", server.address).ready()
        try:
            rows.append(await _cold(session, messages=200 if plan.quick else 2_000))
            plan.note_disturbances(machine)
        finally:
            cold.kill()
    return rows


def _session(client: AgentClient) -> Session:
    return client.session(agent=AGENT, session_id=uuid.uuid4().hex)


async def _ms(action: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await action()
    return (time.perf_counter() - started) * 1e3


async def _ratio(client: AgentClient, machine: Machine, *, turns: int) -> list[Row]:
    """Compare a message of a session with a direct invocation, in turns, under the same conditions."""
    session = _session(client)
    for _ in range(3):
        await client.run(AGENT, MESSAGE)
        await session.say(MESSAGE)
    direct, in_session = list[float](), list[float]()

    async def pair() -> float:
        direct.append(await _ms(lambda: client.run(AGENT, MESSAGE)))
        in_session.append(await _ms(lambda: session.say(MESSAGE)))
        return in_session[-1] / direct[-1]

    ratios = quantiles([await machine.undisturbed(pair) for _ in range(turns)], n=4)
    note = f"medians {median(in_session):.0f} ms and {median(direct):.0f} ms, in turns"
    name = "a message of a session, against a direct invocation"
    return [Row(name=name, value=ratios[1], unit="x", goal=1.6, spread=(ratios[0], ratios[2]), note=note)]


async def _many(client: AgentClient, *, sessions: int, messages: int) -> Row:
    """Run many sessions at the same time."""
    durations_ms: list[float] = []

    async def converse() -> None:
        session = _session(client)
        for _ in range(messages):
            durations_ms.append(await _ms(lambda: session.say(MESSAGE)))

    started = time.perf_counter()
    await asyncio.gather(*(converse() for _ in range(sessions)))
    elapsed = time.perf_counter() - started
    quarters = quantiles(durations_ms, n=4)
    return Row(
        name=f"{sessions} sessions at the same time, {messages} messages each: a message",
        value=median(durations_ms),
        unit="ms",
        spread=(quarters[0], quarters[2]),
        note=f"{sessions * messages / elapsed:.0f} messages a second; all of them in {elapsed:.0f} s",
    )


async def _long(client: AgentClient, *, messages: int) -> tuple[Session, list[Row]]:
    """Send many messages to one session."""
    session = _session(client)
    sizes: dict[int, int] = {}
    durations_ms: list[float] = []
    for number in range(1, messages + 1):
        durations_ms.append(await _ms(lambda: session.say(MESSAGE)))
        if number in (9, 10, messages // 2 - 1, messages // 2):
            sizes[number] = await _history_bytes(client.temporal, session.id, number)
    earlier, later = sizes[10] - sizes[9], sizes[messages // 2] - sizes[messages // 2 - 1]
    total = await _history_bytes(client.temporal, session.id, messages)
    return session, [
        Row(name="history of message 10 of a session", value=earlier / 1e3, unit="kB", note="session and invocation"),
        Row(name=f"history of message {messages // 2}", value=later / 1e3, unit="kB", note="session and invocation"),
        Row(
            name=f"a session of {messages} messages: history per message",
            value=total / messages / 1e3,
            unit="kB",
            note=f"first and last tenth: {median(durations_ms[: messages // 10]):.0f} and "
            f"{median(durations_ms[-messages // 10 :]):.0f} ms a message",
        ),
    ]


async def _history_bytes(client: Client, session: str, messages: int) -> int:
    """Return the size of all histories of a session: of its runs and its invocations."""
    size = 0
    handle = client.get_workflow_handle(session)
    first = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    run_id: str | None = first
    while run_id:
        events = (await client.get_workflow_handle(session, run_id=run_id).fetch_history()).events
        size += sum(event.ByteSize() for event in events)
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    described = await asyncio.gather(
        *(client.get_workflow_handle(f"{session}/{number}").describe() for number in range(1, messages + 1))
    )
    return size + sum(d.raw_description.workflow_execution_info.history_size_bytes for d in described)


async def _cold(session: Session, *, messages: int) -> Row:
    """Measure the first reply of a new worker in a long session."""
    elapsed = await _ms(lambda: session.say(MESSAGE))
    warm = median([await _ms(lambda: session.say(MESSAGE)) for _ in range(10)])
    name = f"a new worker's first reply in a session of {messages} messages"
    return Row(name=name, value=elapsed, unit="ms", note=f"its later replies: {warm:.0f} ms")


async def make_worker(address: str) -> Worker:
    """Create the worker."""
    agent = Agent(name=AGENT, model=FunctionModel(lambda _: says(ANSWER)))
    return create_worker(await connect(address=address), Registry.of(agent), task_queue=QUEUE)


if __name__ == "__main__":
    run_until_orphaned(make_worker(sys.argv[1]))
