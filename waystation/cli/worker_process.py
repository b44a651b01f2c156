"""A worker as a process of its own, which can be killed like one."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from waystation.cli.exits import Exit, Problem
from waystation.core.payload import JsonObject
from waystation.embedded import bound_to_this_process

READY_LIMIT_S = 30.0
STOP_LIMIT_S = 5.0
KEPT_LINES = 20


class WorkerProcess:
    """`waystation worker`, ready when the block is entered and gone when it is left."""

    def __init__(self, *options: str) -> None:
        self._command = [sys.executable, "-m", "waystation.worker", "--log-format", "json", *options]
        self._said: list[str] = []
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]
        self._ready: asyncio.Future[JsonObject]
        self.facts: JsonObject = {}
        """What it said when it was ready: `agents`, `model`, `task_queue`, …"""

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    async def __aenter__(self) -> Self:
        self._ready = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            *bound_to_this_process(self._command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # A Ctrl-C in the terminal is for the program that started it, which then stops it.
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reading = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                self.facts = await self._ready
        except TimeoutError:
            await self._stop()
            raise Problem(Exit.FAILED, f"The worker was not ready within {READY_LIMIT_S:g} s: {self._last()}") from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def kill(self) -> int:
        """Kill it, as a crash would, and return its exit code."""
        self._process.kill()
        return await self._process.wait()

    async def _stop(self) -> None:
        for name in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                self._process.send_signal(name)
                await asyncio.wait((asyncio.ensure_future(self._process.wait()),), timeout=STOP_LIMIT_S)
        self._reading.cancel()
        self._ready.cancel()

    async def _read(self) -> None:
        """Read what it says, so that it never waits for a reader; keep the last of it."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            self._said = [*self._said, text][-KEPT_LINES:]
            if '"worker.ready"' in text and not self._ready.done():
                self._ready.set_result(json.loads(text))
        if not self._ready.done():
            code = await self._process.wait()
            self._ready.set_exception(Problem(Exit.FAILED, f"The worker ended with code {code}: {self._last()}"))

    def _last(self) -> str:
        return _problems(self._said) or "it said nothing"


def _problems(lines: Sequence[str]) -> str:
    """Return what a worker complained about, or else what it said last."""
    found = []
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict) and fields.get("level") in ("error", "critical"):
            found.append(str(fields.get("problem") or fields.get("event")))
    return "; ".join(found) or "; ".join(lines[-3:])
