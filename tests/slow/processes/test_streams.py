"""A worker is killed in the middle of a stream: its text is withdrawn, and no reader gets a text twice."""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import replace

from tests.server.conftest import verify_tree
from tests.server.processes.workers import SOON_LOST, Place
from waystation.apps.registry import Registry
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.contract import PARTIAL, Event, text_of
from waystation.testing import FakeGemini
from waystation.worker import create_worker

FIRST = "It snows in Bern, and it will snow tomorrow, and the day after."
SECOND = "It rains in Bern, and it will rain tomorrow, and the day after."


class Reader:
    """Follows a stream, and records its events."""

    def __init__(self, invocation: Invocation) -> None:
        self.texts: dict[int, str] = {}
        """The text of each attempt that was shown and not withdrawn."""
        self.void: list[int] = []
        self.recorded: list[Event] = []
        self.shown = defaultdict[int, asyncio.Event](asyncio.Event)
        """Whether any text of an attempt was shown."""
        self._stream = invocation.stream(partial=True)

    async def read(self) -> None:
        """Read to the end."""
        async for event in self._stream:
            if not event.partial:
                self.recorded.append(event)
                continue
            facts = (event.custom_metadata or {})[PARTIAL]
            if facts.get("void"):
                self.void.append(facts["attempt"])
                del self.texts[facts["attempt"]]
            elif event.content:
                before = self.texts.get(facts["attempt"], "")
                assert facts["offset"] == len(before)
                self.texts[facts["attempt"]] = before + text_of(event.content)
                self.shown[facts["attempt"]].set()


async def test_text_of_a_killed_worker_is_withdrawn(place: Place, client: AgentClient, gemini: FakeGemini) -> None:
    """Readers from before and after the kill end with the same recorded text."""
    variables = {"GOOGLE_GEMINI_BASE_URL": gemini.url, "GOOGLE_API_KEY": "a test's key"}
    there = replace(place, environment=variables)
    held = [asyncio.Event(), asyncio.Event()]
    gemini.reply(text=FIRST, hold=held[0])
    gemini.reply(text=SECOND, hold=held[1])
    deciding = create_worker(
        client.temporal, Registry(), task_queue=place.task_queue, activities=False, settings=SOON_LOST
    )
    async with deciding, AsyncExitStack() as stack:
        first = await stack.enter_async_context(there.worker("--only", "activities"))
        invocation = await client.start("speaking", "Weather?", streaming=True)
        readers = [Reader(invocation) for _ in range(3)]
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        await asyncio.gather(*(reader.shown[1].wait() for reader in readers))
        await first.kill()
        late = Reader(invocation)
        reading.append(asyncio.create_task(late.read()))
        await late.shown[1].wait()
        await stack.enter_async_context(there.worker("--only", "activities"))
        await asyncio.gather(*(reader.shown[2].wait() for reader in (*readers, late)))
        held[1].set()
        await asyncio.gather(*reading)
        for reader in (*readers, late):
            assert reader.void == [1]
            assert set(reader.texts) == {2}
            assert SECOND.startswith(reader.texts[2])
            assert [text_of(event.content) for event in reader.recorded] == ["Weather?", SECOND]
        assert [text_of(event.content) async for event in invocation.events()] == ["Weather?", SECOND]
        await verify_tree(invocation, SOON_LOST.workflow)
    held[0].set()
