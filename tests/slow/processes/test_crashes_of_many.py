"""Killed workers with many pending calls, a thinking model or a quick tool, and a killed server."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import psutil
from temporalio.api.enums.v1 import EventType

from tests.server.conftest import verify_tree
from tests.server.processes.conftest import new_place
from tests.server.processes.test_crashes import PARKED, approve_all, has_ended
from tests.server.processes.workers import SOON_LOST, Place, plan, until
from tests.slow.processes.conftest import on_all_stores
from waystation.apps.registry import Registry
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.worker import create_worker


@on_all_stores
async def test_a_model_call_of_a_killed_worker_is_repeated(place: Place, client: AgentClient) -> None:
    """Another worker calls the model again, and one reply is recorded."""
    deciding = create_worker(
        client.temporal, Registry(), task_queue=place.task_queue, activities=False, settings=SOON_LOST
    )
    async with deciding, AsyncExitStack() as stack:
        first = await stack.enter_async_context(place.worker("--only", "activities"))
        invocation = await client.start("pensive", "think")
        await until(lambda: place.ledger.lines("thinking"), "a model that thinks")
        await first.kill()
        place.ledger.open("thought")
        await stack.enter_async_context(place.worker("--only", "activities"))
        assert (await invocation.result()).text == "attempt 2"
        assert [line["attempt"] for line in place.ledger.lines("thinking")] == [1, 2]
        assert [event.author async for event in invocation.events()] == ["user", "pensive"]
        await verify_tree(invocation, SOON_LOST.workflow)


@on_all_stores
async def test_a_quick_call_of_a_killed_worker_runs_again(place: Place, client: AgentClient) -> None:
    """The server notices when the workflow task times out; one result is recorded."""
    async with place.worker() as first:
        invocation = await client.start("planned", plan([("look", {})]))
        assert await first.exit_code() == -signal.SIGKILL
    async with place.worker() as second:
        assert json.loads((await invocation.result()).text) == [["look", {"pid": second.pid}]]
        assert [line["key"] for line in place.ledger.lines("looked")] == [f"{invocation.id}/fc-1"] * 2
        kinds = [event.event_type for event in (await invocation.history()).events]
        assert kinds.count(EventType.EVENT_TYPE_MARKER_RECORDED) == 1
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT in kinds
        await verify_tree(invocation)


@on_all_stores
async def test_a_killed_server_loses_nothing(tmp_path: Path, stores: Sequence[str]) -> None:
    """Pending calls stay pending, a tool that ran in between reports later, and the worker continues."""
    db_filename = tmp_path / "temporal.db"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(db_filename=db_filename))
        place = replace(new_place(server, tmp_path), options=stores)
        worker = await stack.enter_async_context(place.worker())
        client = await place.client()
        parked = await client.start("planned", plan([("pay", {"amount": 5})]))
        busy = await client.start("planned", plan([("work", {"gate": "outage"})]))
        before = await until(parked.pending, "a call to confirm")
        await until(lambda: place.ledger.lines("began"), "a tool that runs")

        killed = psutil.Process(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: has_ended(killed), "the end of the server, and with it of its lock on the file")
        place.ledger.open("outage")
        await until(lambda: place.ledger.lines("ended"), "the end of the tool")
        port = int(server.address.rpartition(":")[2])
        await stack.enter_async_context(EmbeddedServer(db_filename=db_filename, port=port))

        assert await parked.pending() == before
        await parked.approve(by="dana")
        assert (await parked.result()).text == '[["pay", {"paid": 5}]]'
        assert (await busy.result()).text == '[["work", {"held": "outage", "attempt": 1}]]'
        assert [line["key"] for line in place.ledger.lines("paid")] == [f"{parked.id}/fc-1"]
        for invocation in (parked, busy):
            await verify_tree(invocation)
        assert worker.running
        assert worker.other == []


@on_all_stores
async def test_a_hundred_pending_calls_survive_their_worker(place: Place, client: AgentClient) -> None:
    """Each is answered by exactly one of several approvers and has one effect, and every invocation completes."""

    async def all_wait() -> bool:
        waiting = {call.invocation_id for call in await client.pending()}
        return waiting >= {invocation.id for invocation in invocations}

    async with place.worker() as first:
        invocations = await asyncio.gather(
            *(client.start("planned", plan([("pay", {"amount": number})])) for number in range(PARKED))
        )
        await until(all_wait, f"{PARKED} calls that wait")
        await first.kill()
    assert await all_wait()
    async with place.worker():
        # Each call is answered by two of three people.
        people = [[each for n, each in enumerate(invocations) if n % 3 != person] for person in range(3)]
        accepted = await asyncio.gather(*(approve_all(theirs) for theirs in people))
        results = await asyncio.gather(*(invocation.result() for invocation in invocations))
    assert sorted(id for ids in accepted for id in ids) == sorted(invocation.id for invocation in invocations)
    paid = {line["key"]: line["amount"] for line in place.ledger.lines("paid")}
    assert paid == {f"{invocation.id}/fc-1": number for number, invocation in enumerate(invocations)}
    assert len(place.ledger.lines("paid")) == PARKED
    assert [result.text for result in results] == [f'[["pay", {{"paid": {number}}}]]' for number in range(PARKED)]
