"""Streams of invocations that continue as new, and of called agents."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from temporalio.service import RPCError

from tests.server.conftest import Serve
from tests.server.streams.held import Held
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.contract import PARTIAL, WORKFLOW, Event, text_of
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool

STEPS = 7


def add(number: int) -> int:
    """Add."""
    return number + 1


class Heard(ScriptedModel):
    """A model that finishes each reply only after a reader has received its beginning."""

    def __init__(self, *replies: LlmResponse) -> None:
        super().__init__(*replies)
        self.heard = asyncio.Semaphore(0)

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next reply, later."""
        response = await super().generate(request, on_text=on_text)
        await self.heard.acquire()
        return response


class Reader:
    """A reader of a stream, and the texts that it has shown."""

    def __init__(self) -> None:
        self.indexes: list[int | None] = []
        self.texts: dict[int, str] = {}
        """The text of each model call that is not recorded yet."""
        self.complete: dict[int, str] = {}

    def take(self, event: Event) -> bool:
        """Take an event; return whether it begins the text of a model call."""
        if not event.partial:
            self.indexes.append(event.index)
            return False
        facts = (event.custom_metadata or {})[PARTIAL]
        call = facts["model_call"]
        if facts.get("complete"):
            self.complete[call] = self.texts.pop(call)
        begins = call not in self.texts and bool(text_of(event.content))
        if text_of(event.content):
            assert facts["offset"] == len(self.texts.get(call, ""))
            self.texts[call] = self.texts.get(call, "") + text_of(event.content)
        return begins


@pytest.mark.slow
async def test_partial_text_goes_on_over_every_cut(serve: Serve) -> None:
    """A reader from the beginning, and one who joins in a later run, receive each text once."""
    said = [f"I make step {n} of them." for n in range(1, STEPS + 1)]
    model = Heard(*(calls(("add", {"number": n}), text=text) for n, text in enumerate(said)), says("Done."))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        handle = await env.temporal.start_workflow(
            WORKFLOW,
            {"agent": "adder", "message": "go", "cut_after": 20, "streaming": True},
            id=f"long-{env.client.task_queue}",
            task_queue=env.client.task_queue,
        )
        invocation, first, late = Invocation(env.client, handle), Reader(), Reader()
        reading: asyncio.Task[None] | None = None

        async def read_late() -> None:
            async for event in invocation.stream(partial=True, start=3):
                late.take(event)

        async with asyncio.timeout(60):
            async for event in invocation.stream(partial=True):
                if first.take(event):
                    if len(first.complete) == STEPS - 1:
                        assert len(await invocation.histories()) > 2
                        reading = asyncio.create_task(read_late())
                    model.heard.release()
            assert reading
            await reading
        assert first.indexes == list(range(2 * STEPS + 2))
        assert sorted(first.complete) == list(range(1, STEPS + 2))
        for text, shown in zip([*said, "Done."], first.complete.values(), strict=True):
            assert text.startswith(shown)
        assert late.indexes == list(range(3, 2 * STEPS + 2))
        assert all(text.startswith(late.complete.get(n, "")) for n, text in enumerate([*said, "Done."], 1))
        assert (first.texts, late.texts) == ({}, {})


@pytest.mark.slow
async def test_the_text_of_a_called_agent_is_none_of_its_callers(serve: Serve) -> None:
    """A called agent has its own stream. The caller's stream has only the caller's text, before and after the call."""
    child = Held("I think about it.")
    outer = Heard(calls(("thinker", {"request": "?"}), text="I ask."), says("It thought about it."))
    agents = Agent(name="asker", model=outer, tools=[AgentTool(Agent(name="thinker", model=child))])
    async with serve(agents) as env:
        invocation = await env.client.start("asker", "go", streaming=True)
        reader, inner = Reader(), list[Event]()

        async def begun() -> bool:
            with suppress(RPCError):
                return bool(await env.client.invocation(f"{invocation.id}/fc-1").handle.describe())
            return False

        async def read_child() -> None:
            await wait_until(begun, "the called agent")
            async for event in env.client.stream(f"{invocation.id}/fc-1", partial=True):
                inner.append(event)
                child.go_on.set()

        reading: asyncio.Task[None] | None = None
        async with asyncio.timeout(30):
            async for event in invocation.stream(partial=True):
                if reader.take(event):
                    outer.heard.release()
                if event.function_calls():
                    reading = asyncio.create_task(read_child())
            assert reading
            await reading
        assert sorted(reader.complete) == [1, 2]
        assert "I ask.".startswith(reader.complete[1])
        assert "It thought about it.".startswith(reader.complete[2])
        assert [(event.index, event.partial, text_of(event.content)) for event in inner] == [
            (0, None, "?"),
            (1, None, "I think about it."),
        ]
