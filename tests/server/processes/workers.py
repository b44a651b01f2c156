"""Start worker processes as an operator does, and end them with the test in any case."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from temporalio.client import Client

from tests.paths import ROOT
from tests.programs import undisturbed
from tests.server.processes import ledger
from tests.server.processes.agents.planned.agent import ELSEWHERE
from waystation.client.agent_client import AgentClient
from waystation.core.contract import ActivityOptions, Settings, WorkflowSettings
from waystation.core.payload import JsonObject
from waystation.embedded import bind_to_this_process

T = TypeVar("T")

AGENTS = Path(__file__).parent / "agents"
LIMIT_S = 100.0
"""Shorter than the time limit of a test, which ends the whole process and shows less."""
MAX_LINE = 1_000_000


@overload
async def until(look: Callable[[], Awaitable[T]], what: str) -> T: ...
@overload
async def until(look: Callable[[], T], what: str) -> T: ...
async def until(look: Callable[[], Any], what: str) -> Any:
    """Poll until the result is true, and return it, or raise an AssertionError when the time is up."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                seen = look()
                found = await seen if isinstance(seen, Awaitable) else seen
                if found:
                    return found
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"Not seen within {LIMIT_S:g} s: {what}") from None


async def wait_for_listed(client: Client, query: str) -> list[str]:
    """Wait until the server lists workflows, which takes a moment after their start. Return their IDs."""

    async def look() -> list[str]:
        return [found.id async for found in client.list_workflows(query)]

    return await until(look, query)


def _soon(options: ActivityOptions) -> ActivityOptions:
    return replace(options, heartbeat=timedelta(seconds=2) if options.heartbeat else None)


_DEFAULTS = WorkflowSettings()
SOON_LOST = Settings(
    workflow=replace(
        _DEFAULTS,
        model=_soon(_DEFAULTS.model),
        archive=_soon(_DEFAULTS.archive),
        collect=_soon(_DEFAULTS.collect),
        archive_session=_soon(_DEFAULTS.archive_session),
    )
)
"""Options of workers whose workflows notice within seconds that the worker of an activity was killed."""


class Process:
    """A program that ends with the block; its output is read line by line."""

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._environment = {**undisturbed(), **(environment or {})}
        self._process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None]
        self.logs: list[JsonObject] = []
        """Lines that are JSON, of either output."""
        self.other: list[str] = []
        """All other lines."""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *bind_to_this_process(list(self._command)),
            cwd=ROOT,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=MAX_LINE,
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        await self.exit_code()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                self.logs.append(json.loads(line))
            except ValueError:
                self.other.append(line.decode().rstrip())

    @property
    def pid(self) -> int:
        """Return the ID of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process is still running."""
        return self._process.returncode is None

    async def exit_code(self) -> int:
        """Wait for the end, and for all output; return the exit code."""
        async with asyncio.timeout(LIMIT_S):
            code = await self._process.wait()
            await self._reader
        return code

    async def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Ask the process to end; return the exit code."""
        self.send(by)
        return await self.exit_code()

    def send(self, what: signal.Signals) -> None:
        """Send a signal. Raises `ProcessLookupError` if the process has ended."""
        # Before Python 3.13 (CPython issue 87744), asyncio's `send_signal` may reap a process that has just ended, and
        # its exit code is lost.
        if not self.running:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, what)

    async def kill(self) -> None:
        """Kill the process."""
        assert await self.stop(signal.SIGKILL) == -signal.SIGKILL

    async def logged(self, event: str) -> JsonObject:
        """Wait for a line of the log and return it."""

        def look() -> JsonObject | None:
            found = self.events(event)
            assert found or self.running, f"The process ended without {event!r}: {self.logs} {self.other}"
            return found[0] if found else None

        found = await until(look, event)
        assert found is not None
        return found

    def events(self, event: str) -> list[JsonObject]:
        """Return the lines of the log with that event."""
        return [line for line in self.logs if line.get("event") == event]

    @property
    def life(self) -> list[str]:
        """Return the worker's events about itself, oldest first."""
        return [line["event"] for line in self.logs if line["event"].startswith("worker.")]


class WorkerProcess(Process):
    """`waystation worker …`; the block begins when it serves."""

    def __init__(self, *options: str, environment: Mapping[str, str] | None = None, nice: int = 0) -> None:
        nicely = (shutil.which("nice") or "nice", "-n", str(nice)) if nice else ()
        super().__init__(*nicely, sys.executable, "worker.py", *options, environment=environment)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self.logged("worker.ready")
        except BaseException:
            await self.__aexit__()
            raise
        return self


@dataclass(frozen=True, kw_only=True)
class Place:
    """The worker processes of one test: a server, a task queue, a ledger."""

    address: str
    task_queue: str
    ledger: ledger.Ledger
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()

    def worker(self, *options: str, task_queue: str | None = None, nice: int = 0) -> WorkerProcess:
        """Return a worker process that is not started yet. It serves the agents here, unless it serves only workflows.

        `nice` lowers the priority of the process.
        """
        agents = () if "workflows" in options else ("--agents", str(AGENTS))
        return WorkerProcess(
            *(
                *agents,
                "--address",
                self.address,
                "--task-queue",
                task_queue or self.task_queue,
                *self.options,
                *options,
            ),
            environment={
                ledger.VARIABLE: str(self.ledger.folder),
                ELSEWHERE: f"{self.task_queue}-elsewhere",
                **self.environment,
            },
            nice=nice,
        )

    async def client(self) -> AgentClient:
        """Return a client for this test's workers."""
        namespace = self.environment.get("TEMPORAL_NAMESPACE")
        return await AgentClient.connect(address=self.address, namespace=namespace, task_queue=self.task_queue)


def plan(*batches: list[tuple[str, dict[str, Any]]]) -> str:
    """Return a message for the agent `planned`: the calls to make, batch by batch."""
    return json.dumps(batches)
