"""Streams of a running invocation: recorded events, and text while a fake Gemini generates it over HTTP."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import temporalio.converter
from temporalio.client import Client, WorkflowHistory

from tests.paths import HISTORIES
from tests.server.conftest import Serve
from tests.server.streams.held import Held
from tests.server.workflows.test_codec import Veil
from waystation.agents import Agent, BaseAgent, ParallelAgent
from waystation.apps.registry import Registry
from waystation.client import PartialTextReader, stream_file
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.contract import PARTIAL, Event, text_of
from waystation.core.errors import ForeignHistory
from waystation.core.log import Log, is_working
from waystation.embedded import EmbeddedServer
from waystation.history import build_log
from waystation.models import LlmResponse
from waystation.models.google_llm import Gemini
from waystation.testing import FakeGemini, FunctionModel, ScriptedModel, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.worker import create_worker

LONG = "It rains in Bern, and it will rain tomorrow, and on the day after it will still rain."


@pytest.fixture
async def model(gemini: FakeGemini) -> AsyncIterator[Gemini]:
    """Return a model that calls the fake Gemini."""
    model = Gemini(base_url=gemini.url, api_key="a test's key")
    yield model
    await model.close()


def facts(event: Event) -> dict[str, object]:
    """Return the fields of a partial event that identify its place."""
    return dict((event.custom_metadata or {}).get(PARTIAL) or {})


async def collected(invocation: Invocation, *, start: int = 0) -> list[Event]:
    """Return all events of a stream with partial text."""
    return [event async for event in invocation.stream(start=start, partial=True)]


class TwoSteps(Invocation):
    """An ended invocation that is read in two steps: first its first event, and then all others."""

    has_grown: asyncio.Event

    async def follow(self) -> AsyncIterator[Log]:
        """Set `has_grown` when the second step has been read."""
        await self.result()
        log = await self.log()
        later = log.state.events[1:]
        del log.state.events[1:]
        yield log
        log.state.events += later
        self.has_grown.set()
        yield log


async def test_a_stream_yields_the_events_that_are_read_while_one_is_handled(serve: Serve) -> None:
    """The log grows while the caller handles the first event, and no event is skipped."""
    async with serve(Agent(name="speaker", model=ScriptedModel(says("Rain.")))) as env:
        invocation = TwoSteps(env.client, (await env.client.start("speaker", "Weather?")).handle)
        invocation.has_grown = asyncio.Event()
        texts = []
        async for event in invocation.stream():
            texts.append(text_of(event.content))
            await invocation.has_grown.wait()
        assert texts == ["Weather?", "Rain."]


async def test_text_is_shown_while_the_model_says_it_and_recorded_whole(
    serve: Serve, gemini: FakeGemini, model: Gemini
) -> None:
    """The pieces form the beginning of the recorded text, each once; a last partial event announces the whole text."""
    hold = asyncio.Event()
    gemini.reply(text=LONG, hold=hold)
    async with serve(Agent(name="speaker", model=model)) as env:
        invocation = await env.client.start("speaker", "Weather?", streaming=True)
        seen: list[Event] = []
        async for event in invocation.stream(partial=True):
            seen.append(event)
            if event.partial:
                hold.set()
        pieces = [event for event in seen if event.partial]
        assert [event.author for event in pieces] == ["speaker"] * len(pieces)
        assert LONG.startswith("".join(text_of(event.content) for event in pieces))
        assert text_of(pieces[0].content)
        assert [facts(event).get("complete") for event in pieces][-1] is True
        assert [(event.index, text_of(event.content)) for event in seen if not event.partial] == [
            (0, "Weather?"),
            (1, LONG),
        ]
        assert seen[-1].partial is None
        assert gemini.requests[0].streamed


@pytest.mark.slow
async def test_nothing_is_streamed_unless_it_is_asked_for(serve: Serve, gemini: FakeGemini, model: Gemini) -> None:
    """Without `streaming` the model returns its whole answer at once, as in ADK."""
    gemini.reply(text=LONG)
    async with serve(Agent(name="speaker", model=model)) as env:
        invocation = await env.client.start("speaker", "Weather?")
        assert [(event.index, event.partial) for event in await collected(invocation)] == [(0, None), (1, None)]
        assert not gemini.requests[0].streamed


@pytest.mark.slow
async def test_text_of_an_attempt_that_failed_is_void_and_not_shown_again(
    serve: Serve, gemini: FakeGemini, model: Gemini
) -> None:
    """After a broken connection, the text of the second attempt replaces that of the first."""
    broken = asyncio.Event()
    gemini.fault(drop=True, text="It snows", hold=broken)
    gemini.reply(text=LONG)
    async with serve(Agent(name="speaker", model=model)) as env:
        invocation = await env.client.start("speaker", "Weather?", streaming=True)
        shown = ""
        told: list[tuple[object, bool]] = []
        async for event in invocation.stream(partial=True, start=1):
            if not event.partial:
                break
            broken.set()
            told.append((facts(event)["attempt"], "void" in facts(event)))
            shown = "" if "void" in facts(event) else shown + text_of(event.content)
        assert told[:2] == [(1, False), (1, True)]
        assert all(attempt == 2 for attempt, _ in told[2:])
        assert LONG.startswith(shown)
        assert text_of(event.content) == LONG


async def test_a_reader_who_comes_in_the_middle_gets_what_was_said_so_far(
    serve: Serve, gemini: FakeGemini, model: Gemini
) -> None:
    """Two readers of one call receive the same text, even if one joins later."""
    hold = asyncio.Event()
    gemini.reply(text=LONG, hold=hold)
    async with serve(Agent(name="speaker", model=model)) as env:
        invocation = await env.client.start("speaker", "Weather?", streaming=True)
        firsts = [
            await anext(event async for event in invocation.stream(partial=True) if event.partial) for _ in range(2)
        ]
        assert text_of(firsts[0].content) == text_of(firsts[1].content) != ""
        hold.set()
        await invocation.result()


async def test_a_stream_resumes_from_each_index(serve: Serve) -> None:
    """A stream resumes after any event, during the invocation and after it."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), says("three"))

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        invocation = await env.client.start("adder", "one and two?", streaming=True)
        whole = [event async for event in env.client.stream(invocation.id)]
        assert [event.index for event in whole] == [0, 1, 2, 3]
        for start in range(5):
            assert [event async for event in env.client.stream(invocation.id, start=start)] == whole[start:]


async def test_what_callbacks_may_change_is_not_shown_before(serve: Serve, gemini: FakeGemini, model: Gemini) -> None:
    """No partial text is shown if an `after_model` callback may hide parts of the reply."""
    hold = asyncio.Event()
    gemini.reply(text="The password is hunter2.")

    def hide(callback_context: object, llm_response: LlmResponse) -> LlmResponse:
        return says("I must not say.")

    async with serve(Agent(name="speaker", model=model, after_model_callback=hide)) as env:
        hold.set()
        seen = await collected(await env.client.start("speaker", "Password?", streaming=True))
        assert [text_of(event.content) for event in seen] == ["Password?", "I must not say."]
        assert not gemini.requests[0].streamed


async def test_agents_that_speak_side_by_side_are_told_apart(serve: Serve) -> None:
    """Each piece of text has its author, its branch and the number of its call."""
    models = {name: Held(f"I am {name}.") for name in ("left", "right")}
    both: list[BaseAgent] = [Agent(name=name, model=model) for name, model in models.items()]
    async with serve(ParallelAgent(name="both", sub_agents=both)) as env:
        invocation = await env.client.start("both", "Who?", streaming=True)
        shown: dict[str, str] = {}
        async for event in invocation.stream(partial=True):
            if event.partial and event.content:
                shown[f"{event.branch}"] = shown.get(f"{event.branch}", "") + text_of(event.content)
            if shown == {"both.left": "I am left.", "both.right": "I am right."}:
                for model in models.values():
                    model.go_on.set()
        assert shown == {"both.left": "I am left.", "both.right": "I am right."}


async def test_text_of_a_call_that_was_given_up_is_void(serve: Serve, gemini: FakeGemini, model: Gemini) -> None:
    """Partial text is void if the invocation is cancelled while the model generates it."""
    gemini.reply(text=LONG, hold=asyncio.Event())
    async with serve(Agent(name="speaker", model=model)) as env:
        invocation = await env.client.start("speaker", "Weather?", streaming=True)
        last: list[Event] = []
        async for event in invocation.stream(partial=True):
            last.append(event)
            if event.partial and event.content:
                await invocation.cancel()
        assert [facts(event).get("void") for event in last if event.partial][-1] is True
        assert [event.error_code for event in last if not event.partial] == [None, "INVOCATION_CANCELLED"]


async def test_an_invocation_that_waits_for_a_person_is_not_looked_at(serve: Serve) -> None:
    """Heartbeats are read only during a model call; a wait for a person costs one long-poll."""

    def ask() -> dict[str, str]:
        """Ask somebody."""
        return {"status": "pending"}

    model = FunctionModel(lambda request: says("done") if responses(request) else calls(("ask", {})))
    async with serve(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])) as env:
        invocation = await env.client.start("asker", "go", streaming=True)
        looked_at = [
            PartialTextReader(invocation).may_grow(log)
            async for log in until_it_waits(invocation)
            if not log.state.models_in_flight
        ]
        assert looked_at
        assert not any(looked_at)
        await invocation.approve()
        await invocation.result()


async def until_it_waits(invocation: Invocation) -> AsyncIterator[Log]:
    """Yield the log until it waits for a person."""
    async for log in invocation.follow():
        yield log
        if log.state.waiting() and not is_working(log.state):
            return


@pytest.mark.parametrize("name", ["one-tool", "confirmation-approved", "sequence-waits", "model-fails"])
async def test_a_history_in_a_file_streams_like_the_invocation_did(name: str) -> None:
    """A history file streams from any index without a server."""
    path = HISTORIES / f"{name}.json"
    whole = [event async for event in stream_file(path)]
    history = WorkflowHistory.from_json(whole[0].invocation_id, path.read_text())
    assert whole == build_log([history]).state.events != []
    assert [event.index for event in whole] == list(range(len(whole)))
    for start in range(len(whole) + 1):
        assert [event async for event in stream_file(path, start=start)] == whole[start:]


@pytest.mark.parametrize("text", ["", "[]", '{"events": []}', '{"events": [{}]}', '{"events": [{"eventId": "x"}]}'])
async def test_a_file_that_is_no_history_is_refused(tmp_path: Path, text: str) -> None:
    """The message names the file, and the command that writes a valid one."""
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(ForeignHistory, match=r"odd\.json' is not a history: .*temporal workflow show -o json"):
        await anext(stream_file(path))


async def test_text_goes_through_a_codec_like_all_content(server: EmbeddedServer) -> None:
    """The server cannot read the text; a reader without the codec gets no partial text."""
    converter = dataclasses.replace(temporalio.converter.default(), payload_codec=Veil())
    temporal = await Client.connect(server.address, data_converter=converter)
    model = Held("I whisper this.")
    queue = "codec-stream"
    agent = Agent(name="quiet", model=model)
    async with create_worker(temporal, Registry.of(agent), task_queue=queue, max_cached_workflows=0):
        invocation = await AgentClient(temporal, task_queue=queue).start("quiet", "go", streaming=True)
        async for event in invocation.stream(partial=True):
            if event.partial and event.content:
                described = await invocation.handle.describe()
                assert b"whisper" not in described.raw_description.SerializeToString()
                assert "I whisper this.".startswith(text_of(event.content))
                model.go_on.set()
        assert text_of(event.content) == "I whisper this."
