"""The time from starting a worker process until the server sees it poll, against a bare Temporal worker."""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from statistics import fmean

from benchmarks.comparison import Plan, in_turns
from benchmarks.engine import worker_command
from benchmarks.side import cpu_s, wait_for_pollers
from benchmarks.table import Row, ratio, ratios
from waystation.client import connect
from waystation.embedded import EmbeddedServer

STARTS = 5
"""Starts in a sample. The time of a single start varies by a fifth."""


async def startup(plan: Plan) -> list[Row]:
    """Measure both workers in turns. Their modules are compiled once, as in an installation."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        async with EmbeddedServer() as server:
            client = await connect(address=server.address)

            async def until_polling_s(side: str) -> tuple[float, float]:
                queue = f"startup-{uuid.uuid4().hex[:8]}"
                floor = [sys.executable, "-m", "benchmarks.side", "benchmarks.floor", server.address, queue, "worker"]
                command = worker_command(server.address, queue) if side == "engine" else floor
                started = time.perf_counter()
                process = subprocess.Popen(  # noqa: ASYNC220  # takes milliseconds
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                try:
                    await wait_for_pollers(client, queue, [process])
                    return time.perf_counter() - started, cpu_s([process.pid])
                finally:
                    process.kill()
                    process.wait()  # it was killed

            # The first round compiles.
            starts = 1 if plan.quick else STARTS
            seconds = await in_turns(["floor", "engine"], plan.pairs * starts, until_polling_s, warm_up=1)

    def means(side: str, kind: int) -> list[float]:
        return [fmean(start[kind] for start in seconds[side][n :: plan.pairs]) for n in range(plan.pairs)]

    (floor, floor_cpu), (engine, engine_cpu) = ((means(side, 0), means(side, 1)) for side in ("floor", "engine"))
    note = f"from exec to the server's list of pollers, mean of {starts}"
    cpu = ratios(floor_cpu, engine_cpu)
    return [ratio("start of a worker", floor, engine, goal=1.7, cpu=cpu, unit_of_sides="s", note=note)]
