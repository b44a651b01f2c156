"""The supervisors of chaos replace and count every worker that ends."""

import signal
import sys

from tests.server.processes.workers import Process, WorkerProcess, until
from verification.chaos.fleet import BLOCKED, Supervisor

READY = """print('{"event": "worker.ready"}', flush=True)\n"""
CRASH = "raise SystemExit('out of order')"
BLOCK = f"{READY}raise SystemExit({BLOCKED})"
SERVE = f"{READY}import time\ntime.sleep(1_000)"


class Script(WorkerProcess):
    """A worker process that runs the given code instead."""

    def __init__(self, code: str) -> None:
        Process.__init__(self, sys.executable, "-c", code)


def supervise(*codes: str) -> Supervisor:
    """Return a supervisor of workers that run these programs, one after another, and then serve."""
    remaining = iter(codes)
    return Supervisor(lambda: Script(next(remaining, SERVE)))


async def test_a_worker_that_crashes_before_it_is_ready_is_a_failure() -> None:
    """A worker that crashes before it is ready is replaced like any other, and its last output is kept."""
    async with supervise(CRASH) as supervisor:
        await supervisor.ready()
    [failure] = supervisor.failures
    assert "exit code 1 before it was ready" in failure
    assert "out of order" in failure


async def test_a_worker_that_crashes_after_it_was_ready_is_a_failure() -> None:
    """The crash of a ready worker is a failure, unlike that of one that replaces itself after a blocking tool."""
    async with supervise(f"{READY}{CRASH}", BLOCK) as supervisor:
        await until(lambda: supervisor.exits[BLOCKED], "the second worker has ended")
    [failure] = supervisor.failures
    assert "A worker ended with exit code 1: " in failure


async def test_only_a_killed_worker_counts_as_killed() -> None:
    """If workers end by themselves when they are to be killed, the next one is killed."""
    async with supervise(BLOCK, BLOCK) as supervisor:
        await until(lambda: supervisor.exits[BLOCKED], "the first worker has ended")
        for _ in range(3):
            await supervisor.end(kill=True)
    assert (supervisor.kills, supervisor.exits[-signal.SIGKILL]) == (3, 3)
    assert supervisor.failures == []


async def test_a_worker_that_is_asked_to_stop_does_not_count_as_killed() -> None:
    """A worker that is asked to stop is replaced, too."""
    async with supervise() as supervisor:
        await supervisor.end(kill=False)
        await supervisor.ready()
    assert (supervisor.kills, supervisor.exits) == (0, {-signal.SIGTERM: 1})
