"""Killed workers and servers lose nothing, and repeat no effect that must happen once."""

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
from waystation.client import Approvals
from waystation.client.agent_client import Invocation
from waystation.core.contract import InvocationResult
from waystation.core.errors import AlreadyAnswered
from waystation.embedded import EmbeddedServer

PARKED = 100


@dataclass(frozen=True)
class Story:
    """The outcome of one invocation whose worker was killed during its tool call."""

    invocation: Invocation
    result: InvocationResult
    ledger: Ledger

    @property
    def key(self) -> str:
        """Return the idempotency key of its only call."""
        return f"{self.invocation.id}/fc-1"

    @property
    def told(self) -> list[object]:
        """Return the responses that its model received."""
        return [response for _, response in json.loads(self.result.text)]


@contextlib.asynccontextmanager
async def crash(place: Place) -> AsyncIterator[dict[str, Story]]:
    """Kill a worker process while it runs a tool of each kind; another one takes over."""
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
    """Return the outcomes after a crash of workers with the default stores."""
    async with crash(new_place(server, tmp_path_factory.mktemp("crash"))) as stories:
        yield stories


async def test_a_call_of_a_killed_worker_is_repeated_under_the_same_key(stories: dict[str, Story]) -> None:
    """The second attempt has the first one's idempotency key, and the invocation completes."""
    story = stories["hold"]
    began = story.ledger.lines("began", key=story.key)
    assert [line["attempt"] for line in began] == [1, 2]
    assert [line["attempt"] for line in story.ledger.lines("ended", key=story.key)] == [2]
    assert story.told == [{"held": "after", "attempt": 2}]
    assert story.result.status == "completed"


@pytest.mark.parametrize("tool", ["hold_once", "hold_confirmed"])
async def test_a_call_with_the_effect_once_is_not_repeated(stories: dict[str, Story], tool: str) -> None:
    """Confirmed calls have this effect by default; the model learns that the outcome is unknown."""
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


async def test_operators_are_asked_about_a_call_of_a_killed_worker(stories: dict[str, Story]) -> None:
    """The list shows the question after the invocation has ended, and names the idempotency key."""
    story = stories["hold_once"]
    each = Approvals(story.invocation.client).each(unknown=True, below=story.invocation.id)
    [asked] = [call async for call in each]
    assert (asked.tool, asked.kind) == ("hold_once", "unknown")
    assert story.key in asked.hint


def has_ended(process: psutil.Process) -> bool:
    """Return whether the kernel has released a killed process's files."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def approve_all(invocations: list[Invocation], call: str = "fc-1") -> list[str]:
    """Approve one call of each invocation in another order; return the invocations where it counted."""
    accepted = []
    for invocation in random.sample(invocations, len(invocations)):
        try:
            await invocation.approve(call)
            accepted.append(invocation.id)
        except AlreadyAnswered:
            pass
    return accepted
