"""Partial text of a model: how soon a client receives it, and its cost when nobody reads."""

import asyncio
import random
import time

from benchmarks.comparison import Plan
from benchmarks.engine import worker
from benchmarks.side import cpu_s
from benchmarks.table import Row, p95
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.core.contract import text_of
from waystation.embedded import EmbeddedServer

QUEUE = "stream"
AGENT = "talker"


async def measure(plan: Plan) -> list[Row]:
    """Measure the delay of the first text, and the CPU time of streams without readers."""
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        async with worker(client, AGENT) as process:
            await first_text_ms(client)
            delays_ms = [await first_text_ms(client) for _ in range(plan.pairs)]
            pids = {"worker": process.pid, "server": server.pid}
            text_s = 5 if plan.quick else 15
            plain, streamed = [
                await cpu_ms(client, pids, streaming=streaming, text_s=text_s) for streaming in (False, True)
            ]
    note = "50 pieces a second in 2 heartbeats; compared with no `streaming`"
    return [
        Row(
            name="a model's first piece to the client's first partial event",
            samples=delays_ms,
            unit="ms",
            note=f"95th percentile {p95(delays_ms):.0f} ms; clients look every 500 ms",
        ),
        *(
            Row(
                name=f"CPU of the {name} for a second of text without a reader",
                samples=[streamed[name] - plain[name]],
                unit="ms",
                note=note,
            )
            for name in pids
        ),
    ]


async def first_text_ms(client: AgentClient) -> float:
    """Return the delay between the model's first word and its arrival at a client."""
    invocation = await client.start(AGENT, f"{random.uniform(0.2, 0.4)} 0.6", streaming=True)
    async for event in invocation.stream(partial=True):
        if event.partial and event.content:
            waited = (time.time_ns() - int(text_of(event.content).split()[0])) / 1e6
            await invocation.result()
            return waited
    raise AssertionError("The model ended without partial text.")


async def cpu_ms(client: AgentClient, pids: dict[str, int], *, streaming: bool, text_s: float) -> dict[str, float]:
    """Return the CPU time of each process per second of generated text."""
    invocation = await client.start(AGENT, f"0 {text_s + 1}", streaming=streaming)
    async for log in invocation.follow():
        if log.state.models_in_flight:
            break
    before = {name: cpu_s([pid]) for name, pid in pids.items()}
    await asyncio.sleep(text_s)
    after = {name: cpu_s([pid]) for name, pid in pids.items()}
    await invocation.result()
    return {name: (after[name] - before[name]) / text_s * 1e3 for name in pids}
