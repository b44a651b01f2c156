"""The engine's side: `worker.py` serves `agents/bench`, and Waystation's client starts and answers invocations."""

import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from benchmarks.side import EXTRA_OPTIONS, Scenario, TemporalSide, wait_for_pollers
from waystation.client import connect
from waystation.client.agent_client import AgentClient, Invocation
from waystation.embedded import bind_to_this_process
from waystation.workflows.invocation import AgentInvocation

ROOT = Path(__file__).resolve().parent.parent
AGENT = "bench"
CALL = "fc-1"
"""The ID of an invocation's first tool call."""


def worker_command(address: str, queue: str, agent: str = AGENT) -> list[str]:
    """Return the command line that serves an agent, as users serve theirs."""
    agents = str(ROOT / "benchmarks" / "agents" / agent)
    options = {"--agents": agents, "--address": address, "--task-queue": queue, "--log-format": "json"}
    words = (word for option in options.items() for word in option)
    return [sys.executable, str(ROOT / "worker.py"), *words, *shlex.split(os.environ.get(EXTRA_OPTIONS, ""))]


def start_worker(address: str, queue: str, agent: str = AGENT) -> subprocess.Popen[bytes]:
    """Start a worker process, which also ends when this process is killed."""
    return subprocess.Popen(
        bind_to_this_process(worker_command(address, queue, agent)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def memory_mb(pids: Iterable[int]) -> float:
    """Return the resident memory of processes."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6


@asynccontextmanager
async def worker(
    client: AgentClient, agent: str = AGENT, *, wait: bool = True
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Serve an agent on the client's task queue until the end of the block; with `wait`, the worker polls at its start.

    The worker is killed with SIGKILL, like a crash.
    """
    process = start_worker(client.temporal.service_client.config.target_host, client.task_queue, agent)
    try:
        if wait:
            await wait_for_pollers(client.temporal, client.task_queue, [process])
        yield process
    finally:
        process.kill()
        process.wait()


class Engine(TemporalSide):
    """Waystation. Approvals arrive by update, as those of its own clients do."""

    async def connect(self) -> Client:
        """Return a client of the server, as Waystation's own clients connect."""
        client = await connect(address=self.address)
        # One for all invocations, as in users' programs: it remembers the announced agents and the search attributes.
        self.agents = AgentClient(client, task_queue=self.queue)
        return client

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker process."""
        return start_worker(self.address, self.queue)

    def replayer(self) -> Replayer:
        """Return a replayer for the histories of this side."""
        return Replayer(
            workflows=[AgentInvocation],
            workflow_runner=UnsandboxedWorkflowRunner(),
            data_converter=self.client.data_converter,
        )

    def invocation(self, id: str) -> Invocation:
        """Return a handle for an invocation."""
        return self.agents.invocation(id)

    async def start(self, scenario: Scenario) -> str:
        """Start an invocation; return its ID."""
        return (await self.agents.start(AGENT, scenario.text(), streaming=bool(scenario.streaming))).id

    async def run(self, scenario: Scenario) -> str:
        """Run an invocation to its end; return its ID."""
        invocation = self.invocation(await self.start(scenario))
        await invocation.result()
        return invocation.id

    async def approve(self, waiting: str, scenario: Scenario) -> str:
        """Approve the pending call, and wait for the result; return the invocation's ID."""
        invocation = self.invocation(waiting)
        await invocation.approve(CALL)
        await invocation.result()
        return waiting


SIDE = Engine
