"""One side of a comparison: a client process and its worker processes, which measure themselves on request.

Every side does the same work, in its own interpreter. This module and the sides other than the engine import nothing
of Waystation, so that what they measure is not Waystation's.

python -m benchmarks.side MODULE ADDRESS QUEUE WORKERS      a client process; it starts that many worker processes
python -m benchmarks.side MODULE ADDRESS QUEUE worker       one of these worker processes

Requests and replies are lines of JSON on standard input and output. The client process ends at the end of its input.
"""

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # sides without Temporal do not have it installed
    from temporalio.client import Client, WorkflowHistory
    from temporalio.worker import Replayer, Worker

EXTRA_OPTIONS = "BENCHMARK_OPTIONS"
"""Environment variable with further options of the engine's workers."""
SYSTEM = ("You are a careful assistant. " * 8)[:200]


@dataclass(frozen=True, slots=True)
class Scenario:
    """`steps` model calls, each with `calls` parallel tool calls, then a final model call."""

    tool: str = "lookup"
    """`danger` needs an approval; `published` also, and the floor then publishes its pending call. `quick` runs inside
    the workflow task. `slow` takes `SLOW_S`."""
    steps: int = 1
    calls: int = 1
    size: int = 100
    """Bytes that each tool call returns."""
    final: int = 200
    """Bytes of the final text."""
    model_ms: int = 0
    """Time that each model call takes."""
    streaming: int = 0
    """1 if the engine streams the texts of the model."""

    def text(self) -> str:
        """Return the message that starts an invocation."""
        return " ".join(map(str, astuple(self)))

    @classmethod
    def parse(cls, text: str) -> "Scenario":
        """Parse the scenario from a message; more words may follow it."""
        tool, *numbers = text.split()[: len(fields(cls))]
        return cls(tool, *map(int, numbers))


ONE = Scenario()
FIVE = Scenario(calls=5)
APPROVE = Scenario(tool="danger")
PUBLISHED = Scenario(tool="published")
QUICK = Scenario(tool="quick")
FIVE_QUICK = Scenario(tool="quick", calls=5)
SLOW_S = 10
SLOW_MODEL = Scenario(model_ms=5_000)
SLOW_TOOL = Scenario(tool="slow")
STREAMED = Scenario(steps=0, final=1_000, model_ms=20_000, streaming=1)


class Side(Protocol):
    """A client of one engine, and its workers."""

    worker_pids: Sequence[int]
    """Empty if the client process does all work."""

    async def open(self) -> None:
        """Start the workers, and wait until they poll."""

    async def run(self, scenario: Scenario) -> str:
        """Run an invocation to its end; return its ID."""

    async def start_waiting(self, scenario: Scenario) -> Any:
        """Start an invocation, wait until its call is pending, and return what `approve` needs."""

    async def approve(self, waiting: Any, scenario: Scenario) -> str:
        """Approve the pending call, and wait for the result; return the invocation's ID."""


class TemporalSide:
    """A side whose agent loop is a Temporal workflow with a query `pending` and a signal `approve`."""

    workflow: str
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = staticmethod(asyncio.run)
    """Runs the event loop of a worker process."""

    def __init__(self, address: str, queue: str, workers: int = 0) -> None:
        self.address, self.queue, self._workers = address, queue, workers
        self.client: Client
        self.worker_pids: Sequence[int] = ()

    async def connect(self) -> "Client":
        """Return a client of the server."""
        from temporalio.client import Client

        return await Client.connect(self.address)

    def make_worker(self, client: "Client") -> "Worker":
        """Return a worker, in a worker process."""
        raise NotImplementedError

    def replayer(self) -> "Replayer":
        """Return a replayer for this side's histories."""
        raise NotImplementedError

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker process."""
        command = [sys.executable, "-m", "benchmarks.side", type(self).__module__, self.address, self.queue, "worker"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    async def serve(self) -> None:
        """Serve a worker until the process is killed."""
        async with self.make_worker(await self.connect()):
            await asyncio.Event().wait()

    async def open(self) -> None:
        """Start the workers, and wait until they poll."""
        self.client = await self.connect()
        workers = [self.start_worker() for _ in range(self._workers)]
        self.worker_pids = [worker.pid for worker in workers]
        await wait_for_pollers(self.client, self.queue, workers)

    async def start(self, scenario: Scenario) -> str:
        """Start an invocation; return its ID."""
        handle = await self.client.start_workflow(
            self.workflow, scenario.text(), id=f"{self.queue}-{uuid.uuid4().hex[:12]}", task_queue=self.queue
        )
        return handle.id

    async def run(self, scenario: Scenario) -> str:
        """Run an invocation to its end; return its ID."""
        id = await self.start(scenario)
        await self.client.get_workflow_handle(id).result()
        return id

    async def start_waiting(self, scenario: Scenario) -> str:
        """Start an invocation, wait until its call is pending, and return its ID."""
        id = await self.start(scenario)
        while not await self.client.get_workflow_handle(id).query("pending"):  # noqa: ASYNC110  # no event for it
            await asyncio.sleep(0.01)
        return id

    async def approve(self, waiting: str, scenario: Scenario) -> str:
        """Approve the pending call, and wait for the result; return the invocation's ID."""
        handle = self.client.get_workflow_handle(waiting)
        await handle.signal("approve")
        await handle.result()
        return waiting


async def wait_for_pollers(client: "Client", queue: str, workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until the server lists each worker as a poller for workflows and for activities."""
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    pids = {str(worker.pid) for worker in workers}
    for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
        request = DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
        )
        # The SDK's default identity of a poller is PID@HOST.
        while not pids <= {
            poller.identity.partition("@")[0]
            for poller in (await client.workflow_service.describe_task_queue(request)).pollers
        }:
            for worker in workers:
                if worker.poll() is not None:
                    raise RuntimeError(f"Exit code {worker.returncode} of a worker that did not poll: {worker.args!r}")
            await asyncio.sleep(0.005)


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time that processes have used so far, in user and kernel mode, with a resolution below 1 ms."""
    # What clock_getcpuclockid(3) returns on Linux; psutil counts in ticks of 10 ms.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


async def measure(side: Side, what: str, scenario: Scenario, count: int, in_flight: int = 1) -> dict[str, Any]:
    """Run or approve `count` invocations, `in_flight` at a time, and return their times, CPU time and IDs."""
    waiting = [await side.start_waiting(scenario) for _ in range(count)] if what == "approve" else []
    # The server finishes its work on the new invocations first; it is not part of the answers.
    await asyncio.sleep(0.05 if waiting else 0)
    times_s, ids, numbers = list[float](), list[str](), iter(range(count))

    async def work() -> None:
        for number in numbers:
            started = time.perf_counter()
            ids.append(await (side.approve(waiting[number], scenario) if waiting else side.run(scenario)))
            times_s.append(time.perf_counter() - started)

    # Without workers, the client process is the worker.
    clients, workers = ([os.getpid()], side.worker_pids) if side.worker_pids else ([], [os.getpid()])
    before, started = (cpu_s(clients), cpu_s(workers)), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return {
        "times_s": times_s,
        "elapsed_s": time.perf_counter() - started,
        "client_cpu_s": cpu_s(clients) - before[0],
        "worker_cpu_s": cpu_s(workers) - before[1],
        "ids": ids,
    }


async def replay(side: TemporalSide, id: str, times: int) -> dict[str, Any]:
    """Replay an invocation's history, and return the seconds that one replay took on average."""
    history = await side.client.get_workflow_handle(id).fetch_history()

    async def copies() -> AsyncIterator["WorkflowHistory"]:
        for number in range(times):
            yield replace(history, workflow_id=f"{id}-{number}")

    started, cpu_before = time.perf_counter(), time.process_time()
    results = await side.replayer().replay_workflows(copies(), raise_on_replay_failure=True)
    assert not results.replay_failures
    elapsed_s, used_s = time.perf_counter() - started, time.process_time() - cpu_before
    return {"times_s": [elapsed_s / times], "client_cpu_s": used_s / times, "worker_cpu_s": 0, "ids": [id]}


async def answer_requests(side: Side) -> None:
    """Open the side, then answer requests until the end of the input; then kill the workers and exit."""
    # A worker does the same. Otherwise, the side that imports more modules would spend more time on garbage collection.
    gc.collect()
    gc.freeze()
    try:
        await side.open()
        reply: dict[str, Any] = {"pids": list(side.worker_pids) or [os.getpid()]}
        while True:
            print(json.dumps(reply), flush=True)
            line = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                break
            request = json.loads(line)
            if request["what"] == "replay":
                assert isinstance(side, TemporalSide)
                reply = await replay(side, request["id"], request["times"])
            else:
                reply = await measure(side, **{**request, "scenario": Scenario.parse(request["scenario"])})
    finally:
        for pid in side.worker_pids:
            os.kill(pid, signal.SIGKILL)
    os._exit(0)  # some engines leave threads


def main(module: str, address: str, queue: str, workers: str) -> None:
    """Run a client process, or a worker process."""
    logging.disable(logging.WARNING)
    try:
        side_type = importlib.import_module(module).SIDE
    except ImportError as error:
        sys.exit(f"{module}: {error}")
    if workers == "worker":
        side_type.run_loop(side_type(address, queue).serve())
    else:
        asyncio.run(answer_requests(side_type(address, queue, int(workers))))


if __name__ == "__main__":
    # The sides import this module, too; `__main__` would be a second copy of it.
    importlib.import_module("benchmarks.side").main(*sys.argv[1:])
