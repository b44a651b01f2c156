"""Workers that are killed while several agents of a tree run lose nothing and repeat no effect."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.server.conftest import verify_tree
from tests.server.processes.test_crashes import approve_all
from tests.server.processes.workers import SOON_LOST, Place, WorkerProcess, until
from tests.slow.processes.conftest import on_all_stores
from waystation.apps.registry import Registry
from waystation.client.agent_client import AgentClient
from waystation.worker import create_worker

PARKED = 20
TOGETHER = [()]
APART = [("--only", "workflows"), ("--only", "activities")]

processes = pytest.mark.parametrize("processes", [TOGETHER, APART], ids=["one-process", "two-processes"])


@contextlib.asynccontextmanager
async def working(place: Place, processes: list[tuple[str, ...]]) -> AsyncIterator[list[WorkerProcess]]:
    """Run processes with these options at the place."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(place.worker(*options)) for options in processes]


async def kill(workers: list[WorkerProcess]) -> None:
    """Kill all of the processes."""
    for worker in workers:
        await worker.kill()


@on_all_stores
@processes
async def test_each_branch_of_a_killed_worker_continues_by_the_effect_of_its_tool(
    place: Place, client: AgentClient, processes: list[tuple[str, ...]]
) -> None:
    """A repeatable call is repeated under the same key; a call with the effect `once` is reported to its agent."""
    async with working(place, processes) as workers:
        invocation = await client.start("branches", "go")
        await until(lambda: len(place.ledger.lines("began")) == 2, "two tools that run")
        await kill(workers)
    place.ledger.open("after")
    async with working(place, processes):
        assert (await invocation.result()).status == "completed"
        await verify_tree(invocation)
    once, repeated = f"{invocation.id}/fc-1-1", f"{invocation.id}/fc-2-1"
    assert [line["attempt"] for line in place.ledger.lines("began", key=once)] == [1]
    assert [line["attempt"] for line in place.ledger.lines("began", key=repeated)] == [1, 2]
    assert [line["key"] for line in place.ledger.lines("ended")] == [repeated]
    log = await invocation.log()
    assert (log.state.calls["fc-1-1"].response or {})["error_type"] == "OutcomeUnknown"
    assert log.state.calls["fc-2-1"].response == {"held": "after", "attempt": 2}
    said = [event.author for event in log.state.events if event.content and "text" in event.content["parts"][0]]
    assert sorted(said) == ["user", "with_hold", "with_hold_once"]


@on_all_stores
@processes
async def test_a_confirmed_tool_finds_its_confirmation_after_a_crash(
    place: Place, client: AgentClient, processes: list[tuple[str, ...]]
) -> None:
    """No approver is asked twice. The second run is repeated unless its effect is `once`; the first one counts."""
    async with working(place, processes) as workers:
        invocation = await client.start("booking", "go")

        async def both_ask() -> bool:
            return len(await invocation.pending()) == 2

        await until(both_ask, "two questions")
        await invocation.approve("fc-1", response={"days": 3})
        await invocation.approve("fc-2", response={"days": 4})
        await until(lambda: len(place.ledger.lines("began")) == 2, "two tools that run again")
        await kill(workers)
    place.ledger.open("after")
    async with working(place, processes):
        await invocation.result()
        await verify_tree(invocation)
    repeated, once = f"{invocation.id}/fc-1", f"{invocation.id}/fc-2"
    assert [line["attempt"] for line in place.ledger.lines("asked", key=repeated)] == [1]
    assert [line["attempt"] for line in place.ledger.lines("asked", key=once)] == [1]
    began = place.ledger.lines("began")
    assert [(line["attempt"], line["days"]) for line in began if line["key"] == repeated] == [(1, 3), (2, 3)]
    assert [(line["attempt"], line["days"]) for line in began if line["key"] == once] == [(1, 4)]
    assert [line["key"] for line in place.ledger.lines("ended")] == [repeated]
    log = await invocation.log()
    assert log.state.calls["fc-1"].response == {"booked": 3, "days": 3}
    assert (log.state.calls["fc-2"].response or {})["error_type"] == "OutcomeUnknown"
    assert [call.run for call in log.state.calls.values()] == [1, 1]


@on_all_stores
async def test_callbacks_before_agents_count_once_after_a_crash(place: Place, client: AgentClient) -> None:
    """Callbacks run with each attempt at the first model call, under one key; one event is recorded."""
    deciding = create_worker(
        client.temporal, Registry(), task_queue=place.task_queue, activities=False, settings=SOON_LOST
    )
    async with deciding, AsyncExitStack() as stack:
        first = await stack.enter_async_context(place.worker("--only", "activities"))
        invocation = await client.start("welcomed", "think")
        await until(lambda: place.ledger.lines("thinking"), "a model that thinks")
        await first.kill()
        place.ledger.open("thought")
        await stack.enter_async_context(place.worker("--only", "activities"))
        result = await invocation.result()
        assert (result.text, result.state_delta) == ("attempt 2", {"welcomed": 1, "guest": 1})
        assert [event.author async for event in invocation.events()] == ["user", "welcomed", "guest", "guest"]
        await verify_tree(invocation, SOON_LOST.workflow)
    assert len(place.ledger.lines("welcomed", agent="welcomed")) == 1
    keys = [line["key"] for line in place.ledger.lines("welcomed", agent="guest")]
    assert len(keys) == 2
    assert len(set(keys)) == 1


@on_all_stores
@processes
async def test_waiting_agents_in_loops_survive_their_workers(
    place: Place, client: AgentClient, processes: list[tuple[str, ...]]
) -> None:
    """Each call is answered once and has one effect, and the next agent of each sequence runs once."""

    async def all_wait() -> bool:
        waiting = {call.invocation_id for call in await client.approvals.pending()}
        return waiting >= {invocation.id for invocation in invocations}

    async with working(place, processes) as workers:
        invocations = await asyncio.gather(*(client.start("pipeline", str(number)) for number in range(PARKED)))
        await until(all_wait, f"{PARKED} calls that wait")
        await kill(workers)
    async with working(place, processes):
        # Each call is answered by two people.
        accepted = await asyncio.gather(*(approve_all(invocations, "fc-2-1") for _ in range(2)))
        results = await asyncio.gather(*(invocation.result() for invocation in invocations))
        logs = [await invocation.log() for invocation in invocations]
        await verify_tree(invocations[0])
    assert sorted(id for ids in accepted for id in ids) == sorted(invocation.id for invocation in invocations)
    paid = Counter((line["key"], line["amount"]) for line in place.ledger.lines("paid"))
    assert paid == {(f"{invocation.id}/fc-2-1", number): 1 for number, invocation in enumerate(invocations)}
    closed = Counter(line["key"] for line in place.ledger.lines("closed"))
    assert closed == {f"{invocation.id}/fc-4-1": 1 for invocation in invocations}
    assert [result.text for result in results] == ["books closed"] * PARKED
    for log in logs:
        agents = [run.agent for run in log.state.runs.by_index.values()]
        assert agents == ["pipeline", "rounds", "payer", "payer", "closer"]
