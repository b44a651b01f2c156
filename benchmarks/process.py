"""Worker processes, started and measured by the benchmark. They end when it ends."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

import psutil
import uvloop
from temporalio.worker import Worker

from waystation.logs import configure_logs

ROOT = Path(__file__).resolve().parent.parent
READY = "READY"


class WorkerProcess:
    """A process that runs a module of this package, which serves a worker."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # open while the process runs
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # the worker ends at its end, so also when this process is killed
            stdout=subprocess.PIPE,
            stderr=self._log,  # not a pipe, which would fill up
            text=True,
        )
        self.pid = self._process.pid
        self._psutil = psutil.Process(self.pid)

    async def ready(self) -> Self:
        """Wait until the worker has started."""
        assert self._process.stdout
        line = await asyncio.to_thread(self._process.stdout.readline)
        if line.strip() != READY:
            self._log.seek(0)
            output = self._log.read().decode(errors="replace")
            raise RuntimeError(f"The worker process ended before it was ready. Its output: {output}")
        return self

    def cpu_s(self) -> float:
        """Return the CPU time used so far, by all threads."""
        times = self._psutil.cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        """Return the resident memory."""
        return float(self._psutil.memory_info().rss) / 1e6

    def kill(self) -> None:
        """End the process with SIGKILL, like a crash."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe:
                pipe.close()


def run_until_orphaned(worker: Coroutine[Any, Any, Worker]) -> None:
    """Serve a worker until standard input ends. Both sides run on uvloop and log as `worker.py` does."""

    async def serve() -> None:
        async with await worker:
            print(READY, flush=True)
            await asyncio.to_thread(sys.stdin.read)
            os._exit(0)

    configure_logs("json")
    uvloop.run(serve())
