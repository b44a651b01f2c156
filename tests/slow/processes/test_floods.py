"""Floods of signals on a busy machine, with the production limit for workflow tasks."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import pytest

from tests.server.processes.workers import Place, Process, plan, until
from tests.steps import find_stuck_tasks, start_and_wait
from waystation.client.agent_client import AgentClient, Invocation

SIGNALS = 9_900
"""The server takes 10,000 in one run."""
NICE = 3
"""The difference in `nice` between the worker and the processes that keep the processors busy."""
PAY = plan([("pay", {"amount": 5})])
JUNK = {
    "junk": ("answer", "x"),
    "answers for another call": ("answer", {"function_call_id": "fc-99", "action": "approve", "comment": "x" * 200}),
}


async def start_flooded(place: Place, client: AgentClient, kind: str, count: int) -> Invocation:
    """Return a waiting invocation that has received signals since its worker ended: all are in one task."""
    async with place.worker() as worker:
        invocation = await start_and_wait(client.start("planned", PAY))
        await worker.stop()
    name, argument = JUNK[kind]
    for _ in range(0, count, 100):
        await asyncio.gather(*(invocation.handle.signal(name, argument) for _ in range(100)))
    return invocation


@contextlib.asynccontextmanager
async def busy_processors() -> AsyncIterator[None]:
    """Keep every processor busy."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            await stack.enter_async_context(Process(sys.executable, "-c", "while True: pass"))
        yield


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", JUNK)
async def test_a_flood_on_a_starved_machine_stops_no_answer(place: Place, client: AgentClient, kind: str) -> None:
    """The worker has a fraction of a processor, and still processes the flood in one workflow task."""
    invocation = await start_flooded(place, client, kind, SIGNALS)
    async with busy_processors(), place.worker(nice=NICE):
        await invocation.approve("fc-1", signal=True)
        async with asyncio.timeout(120):
            await invocation.result()
    assert len(place.ledger.lines("paid")) == 1


async def test_a_workflow_task_over_the_limit_is_repeated_with_a_higher_one(place: Place, client: AgentClient) -> None:
    """This is the documented remedy: nothing is lost."""
    invocation = await start_flooded(place, client, "junk", 1_000)
    async with place.worker("--workflow-task-limit", "0.001"):

        async def has_failed() -> list[object]:
            return [*find_stuck_tasks(await invocation.history())]

        await until(has_failed, "a workflow task that failed")
    async with place.worker():
        await invocation.approve("fc-1", signal=True)
        await invocation.result()
    assert len(place.ledger.lines("paid")) == 1
