"""Workers that are killed and replaced."""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.server.processes.ledger import Ledger
from tests.server.processes.workers import Place, WorkerProcess
from verification.chaos.setups import Servers, Stores

AGENTS = Path(__file__).parent / "agents"
SERVED = (("payers",), ("clerks",), ("payers", "clerks"))
"""The folders with the agents of each worker. All of them poll the same task queue."""
OPTIONS = ("--event-loop-limit", "3", "--drain", "5", "--offload-over", "2000")
TASK_QUEUE = "chaos"
BLOCKED = 11
"""Exit code of a worker that replaced itself because a tool blocked its event loop."""
# A worker that has stopped by itself no longer handles the SIGTERM that the fleet sends.
EXPECTED_EXITS = (0, -signal.SIGKILL, -signal.SIGTERM, BLOCKED)


class Supervisor:
    """Starts a worker again whenever it ends. The last worker ends with the block."""

    def __init__(self, start: Callable[[], WorkerProcess]) -> None:
        self._start = start
        self._ready = asyncio.Event()
        self._process: WorkerProcess
        self._exit: asyncio.Future[int]
        self.kills = 0
        """Number of workers that `end` killed."""
        self.exits = Counter[int]()
        """Exit codes of workers that were ready."""
        self.failures: list[str] = []
        """The last output of workers that ended for no known reason, whether ready or not."""
        self.late = 0
        """Number of workers that were replaced because they were not ready in time."""

    async def __aenter__(self) -> "Supervisor":
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving

    async def ready(self) -> None:
        """Wait until a worker is ready."""
        while (
            not self._ready.is_set()
        ):  # the worker may have ended, and the next be starting, before a waiter continues
            await self._ready.wait()

    async def end(self, *, kill: bool) -> None:
        """Kill the worker, or ask it to stop, once it is ready. If it ends by itself first, end the next one."""
        while True:
            await self.ready()
            self._ready.clear()
            try:
                self._process.send(signal.SIGKILL if kill else signal.SIGTERM)
            except ProcessLookupError:  # the worker has just ended by itself
                continue
            if not kill:
                return
            if await self._exit == -signal.SIGKILL:
                self.kills += 1
                return

    async def _serve(self) -> None:
        while True:
            self._process, self._exit = self._start(), asyncio.get_running_loop().create_future()
            try:
                async with self._process:
                    self._ready.set()
                    while self._process.running:
                        await asyncio.sleep(0.05)
                    self._ready.clear()
                await self._count()
            except AssertionError:
                await self._count_not_ready()
            except TimeoutError:
                self._describe_failure("A worker did not end when it was killed")

    async def _count(self) -> None:
        exit_code = await self._process.exit_code()
        self.exits[exit_code] += 1
        if exit_code not in EXPECTED_EXITS:
            self._describe_failure(f"A worker ended with exit code {exit_code}")
        self._exit.set_result(exit_code)

    async def _count_not_ready(self) -> None:
        exit_code = await self._process.exit_code()
        if exit_code == -signal.SIGKILL:  # killed at the end of its block, because it was not ready in time
            self.late += 1
        else:
            self._describe_failure(f"A worker ended with exit code {exit_code} before it was ready")

    def _describe_failure(self, what: str) -> None:
        self.failures.append(f"{what}: {[*self._process.logs[-3:], *self._process.other[-20:]]}")


def make_supervisors(place: Place) -> list[Supervisor]:
    """Return a supervisor for each worker of the fleet."""

    def supervise(folders: tuple[str, ...]) -> Supervisor:
        return Supervisor(lambda: place.worker("--agents", *(str(AGENTS / folder) for folder in folders), *OPTIONS))

    return [supervise(folders) for folders in SERVED]


def make_place(servers: Servers, stores: Stores, folder: Path) -> Place:
    """Return the place of the fleet, with the ledger in a folder."""
    return Place(address=servers.address, task_queue=TASK_QUEUE, ledger=Ledger(folder), environment=stores.environment)
