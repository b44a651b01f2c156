"""A worker is killed while many calls are pending: all are answered afterwards, each exactly once."""

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.engine import Engine
from benchmarks.plan import Plan
from benchmarks.process import WorkerProcess
from benchmarks.table import Row
from waystation.client import connect
from waystation.core import AnswerCounted
from waystation.embedded import EmbeddedServer

WAITING = 100


async def measure(plan: Plan) -> list[Row]:
    """Measure how many calls are answered, and how long it takes."""
    plan.report_progress(f"{WAITING} calls wait while the worker is killed")
    with tempfile.TemporaryDirectory() as folder:
        witness = Path(folder, "danger")
        async with EmbeddedServer() as server:
            engine = Engine(await connect(address=server.address))
            worker = await WorkerProcess("benchmarks.engine", server.address, str(witness)).ready()
            try:
                waiting = await asyncio.gather(*(engine.start_waiting() for _ in range(WAITING)))
                worker.kill()
                worker = await WorkerProcess("benchmarks.engine", server.address, str(witness)).ready()
                started = time.perf_counter()
                await asyncio.gather(*(engine.approve(id, signal=False) for id in waiting))
                answered_s = time.perf_counter() - started
            finally:
                worker.kill()
            counted = [await engine.count(id, AnswerCounted) for id in waiting]
        ran = _lines(witness)
    once = sum(count == 1 for count in counted)
    return [
        Row(
            name=f"worker killed while {WAITING} calls wait",
            value=once,
            unit="answered once",
            fact=once == WAITING and len(ran) == WAITING == len(set(ran)),
            note=f"{len(ran)} tools ran, for {len(set(ran))} calls",
        ),
        Row(
            name=f"the same: all {WAITING} answered",
            value=answered_s,
            unit="s",
            note="by update, all at once; 1 s of it is the dead worker's sticky queue",
        ),
    ]


def _lines(witness: Path) -> list[str]:
    return witness.read_text().split() if witness.exists() else []
