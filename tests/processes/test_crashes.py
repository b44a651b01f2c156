"""Workers and servers that are killed: nothing is lost, and nothing happens twice that must not."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from tests.conftest import verify_tree
from tests.processes.conftest import new_place
from tests.processes.ledger import Ledger
from tests.processes.workers import Place, plan, until
from waystation.agents.registry import Registry
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.errors import AlreadyAnswered
from waystation.core.wire import InvocationResult
from waystation.embedded import EmbeddedServer
from waystation.worker.main import create_worker
from waystation.workflows import perform

PARKED = 100


@dataclass(frozen=True)
class Story:
    """What happened to one invocation whose worker was killed while its tool ran."""

    invocation: Invocation
    result: InvocationResult
    ledger: Ledger

    @property
    def key(self) -> str:
        """The idempotency key of its only call."""
        return f"{self.invocation.id}/fc-1"

    @property
    def told(self) -> list[object]:
        """What its model was told."""
        return [response for _, response in json.loads(self.result.text)]


@pytest.fixture(scope="module")
async def stories(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Story]]:
    """One worker process is killed while it runs a tool of each kind; another one takes over."""
    place = new_place(server, tmp_path_factory.mktemp("crash"))
    client = await place.client()
    tools = ("hold", "hold_once", "hold_confirmed")
    async with place.worker() as first:
        invocations = {tool: await client.start("planned", plan([(tool, {"gate": "after"})])) for tool in tools}
        await until(invocations["hold_confirmed"].pending, "a call to confirm")
        await invocations["hold_confirmed"].approve()
        await until(lambda: len(place.ledger.lines("began")) == 3, "three tools that run")
        await first.kill()
    place.ledger.open("after")
    async with place.worker():
        results = await asyncio.gather(*(invocation.result() for invocation in invocations.values()))
        for invocation in invocations.values():
            await verify_tree(invocation)
        yield {
            tool: Story(invocations[tool], result, place.ledger) for tool, result in zip(tools, results, strict=True)
        }


async def test_a_call_whose_worker_was_killed_is_made_again_under_the_same_key(stories: dict[str, Story]) -> None:
    """At least once: the second attempt has the first one's idempotency key, and the invocation completes."""
    story = stories["hold"]
    began = story.ledger.lines("began", key=story.key)
    assert [line["attempt"] for line in began] == [1, 2]
    assert [line["attempt"] for line in story.ledger.lines("ended", key=story.key)] == [2]
    assert story.told == [{"held": "after", "attempt": 2}]
    assert story.result.status == "completed"


@pytest.mark.parametrize("tool", ["hold_once", "hold_confirmed"])
async def test_a_call_that_takes_effect_once_is_not_made_again(stories: dict[str, Story], tool: str) -> None:
    """At most once, and by default so for what a person confirmed: the model is told that nobody knows."""
    story = stories[tool]
    assert [line["attempt"] for line in story.ledger.lines("began", key=story.key)] == [1]
    assert story.ledger.lines("ended", key=story.key) == []
    assert story.told == [
        {
            "error": f"The worker that ran `{tool}` was lost before it reported. Whether the call took effect is "
            "unknown; it was not repeated.",
            "error_type": "OutcomeUnknown",
        }
    ]
    assert story.result.status == "completed"


async def test_a_model_call_whose_worker_was_killed_is_made_again(
    place: Place, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker asks the model again, and one reply is recorded."""
    monkeypatch.setattr(perform, "MODEL_HEARTBEAT_TIMEOUT", timedelta(seconds=2))
    deciding = await create_worker(client.temporal, Registry(), task_queue=place.task_queue, activities=False)
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
        await verify_tree(invocation)


def has_ended(process: psutil.Process) -> bool:
    """Whether the kernel has taken a killed process's files away."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    """What waits still waits, a tool that ran meanwhile reports once it can, and the worker just goes on."""
    db_filename = tmp_path / "temporal.db"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(db_filename=db_filename))
        place = new_place(server, tmp_path)
        worker = await stack.enter_async_context(place.worker())
        client = await place.client()
        parked = await client.start("planned", plan([("pay", {"amount": 5})]))
        busy = await client.start("planned", plan([("work", {"gate": "meanwhile"})]))
        before = await until(parked.pending, "a call to confirm")
        await until(lambda: place.ledger.lines("began"), "a tool that runs")

        killed = psutil.Process(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: has_ended(killed), "the end of the server, and with it of its lock on the file")
        place.ledger.open("meanwhile")
        await until(lambda: place.ledger.lines("ended"), "the end of the tool")
        port = int(server.address.rpartition(":")[2])
        await stack.enter_async_context(EmbeddedServer(db_filename=db_filename, port=port))

        assert await parked.pending() == before
        await parked.approve(by="dana")
        assert (await parked.result()).text == '[["pay", {"paid": 5}]]'
        assert (await busy.result()).text == '[["work", {"held": "meanwhile", "attempt": 1}]]'
        assert [line["key"] for line in place.ledger.lines("paid")] == [f"{parked.id}/fc-1"]
        for invocation in (parked, busy):
            await verify_tree(invocation)
        assert worker.running
        assert worker.other == []


async def test_a_hundred_waiting_calls_outlive_their_worker(place: Place, client: AgentClient) -> None:
    """Each is answered by exactly one of several approvers, each takes effect once, and every invocation completes."""

    async def all_wait() -> bool:
        waiting = {call.invocation_id for call in await client.approvals.pending()}
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


async def approve_all(invocations: list[Invocation], call: str = "fc-1") -> list[str]:
    """Approve one call of each invocation, in an order of one's own; return the invocations where it counted."""
    accepted = []
    for invocation in random.sample(invocations, len(invocations)):
        try:
            await invocation.approve(call)
            accepted.append(invocation.id)
        except AlreadyAnswered:
            pass
    return accepted
