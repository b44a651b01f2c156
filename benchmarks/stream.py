"""Partial text of a model: how soon a client receives it, and its cost when nobody reads.

python -m benchmarks.stream ADDRESS     a worker process whose model starts its text with the time
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles

import psutil
from temporalio.worker import Worker

from benchmarks.plan import Plan
from benchmarks.process import WorkerProcess, run_until_orphaned
from benchmarks.quiet import Machine
from benchmarks.table import Row
from waystation.agents import Agent
from waystation.agents.registry import Registry
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.core import text_of
from waystation.embedded import EmbeddedServer
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.testing import says
from waystation.worker import create_worker

QUEUE = "stream"
AGENT = "talker"
PIECE_S = 0.02
"""The model generates 50 pieces per second."""


class TimestampModel(BaseLlm):
    """Wait, then generate text, for the seconds that the message names; the first word is the current time."""

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Generate the text, with or without a reader."""
        silent_s, seconds = map(float, text_of(request.contents[-1]).split())
        await asyncio.sleep(silent_s)
        pieces = [f"{time.time_ns()} ", *["piece "] * int(seconds / PIECE_S)]
        for piece in pieces:
            if on_text is not None:
                on_text(piece)
            await asyncio.sleep(PIECE_S)
        return says("".join(pieces))


async def measure(plan: Plan) -> list[Row]:
    """Measure the delay of the first text, and the CPU time of streams without readers."""
    plan.report_progress("partial text of a model")
    turns = 10 if plan.quick else 40
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        worker = await WorkerProcess("benchmarks.stream", server.address).ready()
        try:
            machine = Machine([server.pid, worker.pid], patience_s=plan.patience_s)
            await first_text_ms(client)

            async def delay_ms() -> float:
                return await first_text_ms(client)

            delays_ms = [await machine.undisturbed(delay_ms) for _ in range(turns)]
            processes = {"worker": psutil.Process(worker.pid), "server": psutil.Process(server.pid)}
            used = {
                streaming: await cpu_ms(client, processes, streaming=streaming, text_s=10 if plan.quick else 30)
                for streaming in (False, True)
            }
            plan.note_disturbances(machine)
        finally:
            worker.kill()
    quarters = quantiles(delays_ms, n=4)
    costs = [
        Row(
            name=f"CPU of the {name} for a second of text without a reader",
            value=used[True][name] - used[False][name],
            unit="ms",
            note="50 pieces a second in 10 heartbeats; compared with no `streaming`",
        )
        for name in processes
    ]
    return [
        Row(
            name="a model's first piece to the client's first partial event",
            value=median(delays_ms),
            unit="ms",
            spread=(quarters[0], quarters[2]),
            note=f"95th percentile {quantiles(delays_ms, n=20)[-1]:.0f} ms; clients look every 100 ms",
        ),
        *costs,
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


async def cpu_ms(
    client: AgentClient, processes: dict[str, psutil.Process], *, streaming: bool, text_s: float
) -> dict[str, float]:
    """Return the CPU time of each process per second of generated text."""
    invocation = await client.start(AGENT, f"0 {text_s + 1}", streaming=streaming)
    async for log in invocation.follow():
        if log.state.models_in_flight:
            break
    before = {name: _cpu_s(process) for name, process in processes.items()}
    await asyncio.sleep(text_s)
    after = {name: _cpu_s(process) for name, process in processes.items()}
    await invocation.result()
    return {name: (after[name] - before[name]) / text_s * 1e3 for name in processes}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def make_worker(address: str) -> Worker:
    """Create the worker."""
    return create_worker(
        await connect(address=address), Registry.of(Agent(name=AGENT, model=TimestampModel())), task_queue=QUEUE
    )


if __name__ == "__main__":
    run_until_orphaned(make_worker(sys.argv[1]))
