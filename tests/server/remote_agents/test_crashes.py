"""A remote task outlives the worker that waits for it."""

import signal
from pathlib import Path

from tests.fakes.a2a_agent import A2aAgent
from tests.paths import ROOT
from tests.server.conftest import verify_tree
from tests.server.processes.conftest import new_place
from tests.server.processes.workers import Place, WorkerProcess, until
from waystation.core.budget import Budget
from waystation.embedded import EmbeddedServer

AGENTS = ROOT / "tests" / "server" / "remote_agents" / "agents"


def start_worker(place: Place, remote: A2aAgent) -> WorkerProcess:
    """Return a worker process that is not started yet."""
    options = ("--agents", str(AGENTS), "--address", place.address, "--task-queue", place.task_queue, "--drain", "1")
    return WorkerProcess(*options, environment={"REMOTE_AGENT_URL": remote.url})


def count_polls(remote: A2aAgent) -> int:
    """Return how often the remote agent was asked about its task."""
    return remote.methods.count("GetTask")


async def test_a_remote_task_outlives_its_workers(server: EmbeddedServer, remote: A2aAgent, tmp_path: Path) -> None:
    """After a killed and a stopped worker, the third one reports the result of the same task, which nobody canceled."""
    place = new_place(server, tmp_path)
    client = await place.client()
    async with start_worker(place, remote) as first:
        invocation = await client.start("billing", "work on invoice 7", budget=Budget(max_cost=1.0))
        await until(lambda: count_polls(remote), "a poll")
        await first.kill()
    seen = count_polls(remote)
    async with start_worker(place, remote) as second:
        await until(lambda: max(count_polls(remote) - seen, 0), "a poll of the second worker")
        await second.stop(signal.SIGTERM)
    seen = count_polls(remote)
    async with start_worker(place, remote):
        await until(lambda: max(count_polls(remote) - seen, 0), "a poll of the third worker")
        remote.gate.set()
        assert (await invocation.result()).text == "Done: work on invoice 7"
        await verify_tree(invocation)
    assert (len(remote.messages), len(remote.tasks), remote.canceled) == (1, 1, [])
