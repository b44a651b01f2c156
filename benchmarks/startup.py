"""The time from starting a worker process until the server sees it poll, against a bare Temporal worker."""

import os
import subprocess
import sys
import tempfile
import time
import uuid

from benchmarks.comparison import Plan
from benchmarks.engine import worker_command
from benchmarks.side import wait_for_pollers
from benchmarks.table import Row, ratio
from waystation.client import connect
from waystation.embedded import EmbeddedServer


async def startup(plan: Plan) -> list[Row]:
    """Measure both workers in turns. Their modules are compiled once, as in an installation."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        async with EmbeddedServer() as server:
            client = await connect(address=server.address)

            async def until_polling_s(*, engine: bool) -> float:
                queue = f"startup-{uuid.uuid4().hex[:8]}"
                floor = [sys.executable, "-m", "benchmarks.side", "benchmarks.floor", server.address, queue, "worker"]
                command = worker_command(server.address, queue) if engine else floor
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
                    return time.perf_counter() - started
                finally:
                    process.kill()
                    process.wait()  # it was killed

            seconds: dict[bool, list[float]] = {False: [], True: []}
            for number in range(plan.pairs + 1):
                for engine in (False, True) if number % 2 == 0 else (True, False):
                    seconds[engine].append(await until_polling_s(engine=engine))
    theirs, ours = (seconds[side][1:] for side in (False, True))  # the first ones compiled
    note = "from exec to the server's list of pollers"
    return [ratio("start of a worker", theirs, ours, goal=1.5, unit_of_sides="s", note=note)]
