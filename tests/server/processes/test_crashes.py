"""Workers and servers that are killed: nothing is lost, and nothing happens twice that must not."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psutil
import pytest

from tests.server.conftest import verify_tree
from tests.server.processes.conftest import new_place
from tests.server.processes.ledger import Ledger
from tests.server.processes.workers import Place, plan, until
from waystation.client.agent_client import Invocation
from waystation.core import AlreadyAnswered, InvocationResult
from waystation.embedded import EmbeddedServer

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


@contextlib.asynccontextmanager
async def crash(place: Place) -> AsyncIterator[dict[str, Story]]:
    """One worker process is killed while it runs a tool of each kind; another one takes over."""
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


@pytest.fixture(scope="module")
async def stories(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Story]]:
    """A crash of workers with the default stores."""
    async with crash(new_place(server, tmp_path_factory.mktemp("crash"))) as stories:
        yield stories


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
            "error": f"The worker running `{tool}` was lost before it reported a result. Whether the call took effect "
            "is unknown; it was not repeated.",
            "error_type": "OutcomeUnknown",
        }
    ]
    assert story.result.status == "completed"


def has_ended(process: psutil.Process) -> bool:
    """Whether the kernel has taken a killed process's files away."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


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
