"""Older events are summarized before the prompt exceeds its threshold; the log keeps them all."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from google.genai import types

from tests.server.conftest import Serve
from tests.steps import run
from waystation import Agent, App, BaseAgent, BaseEventsSummarizer, Event, ParallelAgent
from waystation.apps import EventsCompactionConfig, LlmEventSummarizer
from waystation.client.agent_client import Invocation
from waystation.core.budget import Usage
from waystation.core.contract import ActivitySettings, Settings, text_of
from waystation.core.errors import ModelOverloaded, ModelRefused
from waystation.events import EventActions
from waystation.events.event_actions import EventCompaction
from waystation.models import LlmRequest, LlmResponse
from waystation.models.google_llm import Gemini
from waystation.testing import FakeGemini, ScriptedModel, calls, says
from waystation.testing.models import responses

THRESHOLD = 1_000


def look(page: int) -> dict[str, Any]:
    """Look at a page."""
    return {"page": page, "text": "x" * 1_000}


def ask(purpose: str) -> dict[str, str]:
    """Ask somebody."""
    return {"status": "pending"}


def looks(*pages: int) -> list[LlmResponse]:
    """Return replies that look at pages, one after the other."""
    return [calls(("look", {"page": page})) for page in pages]


def app(agent: BaseAgent, summarizer: Any = None, **fields: Any) -> App:
    """Return an app whose agent reaches the threshold after four pages."""
    settings = {"token_threshold": THRESHOLD, "event_retention_size": 2, **fields}
    config = EventsCompactionConfig(summarizer=summarizer, **settings)
    return App(name="app", root_agent=agent, events_compaction_config=config)


def texts(request: LlmRequest) -> list[str]:
    """Return the texts of a request."""
    return [text for content in request.contents if (text := text_of(content))]


async def summaries(invocation: Invocation) -> list[str]:
    """Return the summaries in the log."""
    made = [event.actions.compaction for event in (await invocation.log()).state.events]
    return [text_of(compaction.compacted_content) for compaction in made if compaction]


async def test_the_agents_own_model_summarizes_by_default(serve: Serve) -> None:
    """The default summarizer uses ADK's prompt; the next request has the summary in place of its events."""
    model = ScriptedModel(*looks(1, 2, 3, 4), says("pages 1 to 3: nothing but x"), says("done"))
    assert (await run(serve(app(Agent(name="reader", model=model, tools=[look]))), "reader", "read all")).text == "done"
    *_, summarizing, last = model.requests
    assert "The following is a conversation history between a user and an AI agent." in texts(summarizing)[0]
    assert "reader called tool: look({'page': 3})" in texts(summarizing)[0]
    assert (summarizing.tools, summarizing.system_instruction) == ((), None)
    assert texts(last) == ["pages 1 to 3: nothing but x", "read all"]
    assert [answer["page"] for _, answer in responses(last)] == [4]


async def test_the_usage_of_a_summary_counts_for_the_invocation(serve: Serve) -> None:
    """The usage of a summary counts for the invocation, and the summary's event has it, too."""
    writer = LlmEventSummarizer(ScriptedModel(says("short", usage=Usage(prompt_tokens=40, total_tokens=50))))
    model = ScriptedModel(*looks(1, 2, 3, 4), says("done", usage=Usage(total_tokens=7)))
    async with serve(app(Agent(name="reader", model=model, tools=[look]), writer)) as env:
        invocation = await env.client.start("reader", "read all")
        assert (await invocation.result()).usage.total_tokens == 57
        [made] = [event for event in (await invocation.log()).state.events if event.covered]
    assert made.usage_metadata == {"prompt_tokens": 40, "total_tokens": 50}


async def test_without_a_configuration_nothing_is_summarized(serve: Serve) -> None:
    """As in ADK, nothing is summarized without a configuration."""
    model = ScriptedModel(*looks(1, 2, 3, 4, 5, 6), says("done"))
    async with serve(App(name="app", root_agent=Agent(name="reader", model=model, tools=[look]))) as env:
        invocation = await env.client.start("reader", "read all")
        assert (await invocation.result()).text == "done"
        assert await summaries(invocation) == []
    assert len(responses(model.requests[-1])) == 6


class Pages(BaseEventsSummarizer):
    """A summarizer for ADK: contents have genai's types, and it sets the range of the summary."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """Name the tools that were called."""
        contents: list[Any] = [event.content for event in events]
        parts = [part for content in contents if content for part in content.parts]
        self.seen.append([part.function_call.name or "" for part in parts if part.function_call])
        compaction = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=types.Content(role="user", parts=[types.Part(text="pages were read")]),
        )
        return Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())


async def test_a_custom_summarizer_receives_genais_types(serve: Serve) -> None:
    """A custom summarizer receives genai's types, and its result appears as the model's text."""
    summarizer = Pages()
    model = ScriptedModel(*looks(1, 2, 3, 4), says("done"))
    assert (
        await run(serve(app(Agent(name="reader", model=model, tools=[look]), summarizer)), "reader", "read all")
    ).text == "done"
    assert summarizer.seen == [["look", "look", "look"]]
    assert model.requests[-1].contents[0] == {"role": "model", "parts": [{"text": "pages were read"}]}


class Broken(BaseEventsSummarizer):
    """A summarizer that fails."""

    def __init__(self, how: Any) -> None:
        self.how = how

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """Raise, hang, or return something else."""
        if isinstance(self.how, Exception):
            raise self.how
        if self.how == "hang":
            await asyncio.Event().wait()
        return self.how  # type: ignore[no-any-return]


def silent() -> Event:
    """Return an event without a summary."""
    return Event(author="user", invocation_id="")


def saying(*parts: dict[str, Any]) -> Event:
    """Return an event with a summary of these parts."""
    content = types.Content.model_validate({"role": "model", "parts": list(parts)})
    compaction = EventCompaction(start_timestamp=1.0, end_timestamp=2.0, compacted_content=content)
    return Event(author="user", invocation_id="", actions=EventActions(compaction=compaction))


FAILURES: list[tuple[Any, str]] = [
    (ValueError("the user said: secret"), "The summarizer raised ValueError at "),
    ("hang", "The summarizer took longer than 0.2 s."),
    ({"summary": "x"}, "The summarizer returned a dict; return an Event, or None."),
    (silent(), "The event that the summarizer returned has no `actions.compaction`."),
    (saying({"thought": True, "text": "hm"}), "The summary has no text."),
    (saying({"functionCall": {"name": "pay", "args": {}}}), "The summary has no text."),
    (saying({"text": "x" * 300_000}), "The summary is 300013 bytes; at most 200000 can be recorded."),
]
"""Broken summarizers, and the recorded reasons."""


async def test_a_failing_summarizer_does_not_fail_the_invocation(serve: Serve) -> None:
    """The model is called with all events; its event has the reason."""
    settings = Settings(activity=ActivitySettings(callback_timeout=timedelta(seconds=0.2)))
    models = [ScriptedModel(*looks(1, 2, 3, 4), says("done")) for _ in FAILURES]
    readers = [
        app(Agent(name=f"reader_{number}", model=model, tools=[look]), Broken(how))
        for number, (model, (how, _)) in enumerate(zip(models, FAILURES, strict=True))
    ]
    async with serve(*readers, settings=settings) as env:
        for number, (model, (_, reason)) in enumerate(zip(models, FAILURES, strict=True)):
            invocation = await env.client.start(f"reader_{number}", "read all")
            assert (await invocation.result()).text == "done"
            last = (await invocation.log()).state.events[-1]
            assert await summaries(invocation) == []
            assert len(responses(model.requests[-1])) == 4
            failure = (last.custom_metadata or {})["compaction_failed"]
            assert failure["reason"].startswith(reason)
            assert "secret" not in failure["reason"]


async def test_after_a_failure_the_next_attempt_waits_for_five_model_calls(serve: Serve) -> None:
    """A failed summary is retried after five model calls, because a hanging summarizer would delay every call."""
    writer = ScriptedModel(ModelRefused("quota", status=403), says("short"))
    model = ScriptedModel(*looks(*range(1, 11)), says("done"))
    async with serve(app(Agent(name="reader", model=model, tools=[look]), LlmEventSummarizer(writer))) as env:
        invocation = await env.client.start("reader", "read all")
        assert (await invocation.result()).text == "done"
        assert await summaries(invocation) == ["short"]
    assert len(writer.requests) == 2
    assert [texts(request)[0] for request in model.requests] == ["read all"] * 10 + ["short"]


async def test_a_summarizer_may_decline(serve: Serve) -> None:
    """A summarizer may return None, as in ADK."""
    model = ScriptedModel(*looks(1, 2, 3, 4), says("done"))
    async with serve(app(Agent(name="reader", model=model, tools=[look]), Broken(None))) as env:
        invocation = await env.client.start("reader", "read all")
        assert (await invocation.result()).text == "done"
        assert (await invocation.log()).state.events[-1].custom_metadata is None


async def test_another_attempt_at_the_model_does_not_pay_for_the_summary_again(serve: Serve) -> None:
    """Another attempt in the same process reuses the summary."""
    writer = ScriptedModel(says("short"))
    model = ScriptedModel(*looks(1, 2, 3, 4), ModelOverloaded("later", retry_after_s=0), says("done"))
    assert (
        await run(
            serve(app(Agent(name="reader", model=model, tools=[look]), LlmEventSummarizer(writer))),
            "reader",
            "read all",
        )
    ).text == "done"
    assert len(writer.requests) == 1
    assert texts(model.requests[-1]) == ["short", "read all"]


async def test_parallel_agents_summarize_their_own_branches(serve: Serve) -> None:
    """Only the agent that reads much has a summary in its prompt."""
    much = ScriptedModel(*looks(1, 2, 3, 4), says("much read"))
    little = ScriptedModel(*looks(5), says("little read"))
    readers: list[BaseAgent] = [
        Agent(name=name, model=model, tools=[look]) for name, model in (("much", much), ("little", little))
    ]
    writer = LlmEventSummarizer(ScriptedModel(says("short")))
    async with serve(app(ParallelAgent(name="both", sub_agents=readers), writer)) as env:
        invocation = await env.client.start("both", "read")
        await invocation.result()
        [made] = [event for event in (await invocation.log()).state.events if event.covered]
    assert made.branch == "both.much"
    assert texts(much.requests[-1]) == ["short", "read"]
    assert [texts(request) for request in little.requests] == [["read"], ["read"]]


@pytest.mark.slow
async def test_an_agent_that_sees_only_the_current_turn_is_not_summarized(serve: Serve) -> None:
    """An agent with `include_contents="none"` is not summarized."""
    model = ScriptedModel(*looks(1, 2, 3, 4), says("done"))
    agent = Agent(name="reader", model=model, tools=[look], include_contents="none")
    async with serve(app(agent, Broken(ValueError()))) as env:
        invocation = await env.client.start("reader", "read all")
        assert (await invocation.result()).text == "done"
        assert (await invocation.log()).state.events[-1].custom_metadata is None


@pytest.mark.slow
async def test_gemini_accepts_a_prompt_that_begins_with_a_summary(serve: Serve) -> None:
    """The real client with Gemini's rules accepts a prompt that begins with a summary."""
    async with FakeGemini() as gemini:
        gemini.reply(calls=[("look", {"page": 1})])
        gemini.reply(calls=[("look", {"page": 2})])
        gemini.reply(calls=[("look", {"page": 3})], usage={"promptTokenCount": 900})
        gemini.reply(text="pages 1 and 2: x")
        gemini.reply(text="done")
        model = Gemini(api_key="key-for-tests", base_url=gemini.url)
        assert (
            await run(serve(app(Agent(name="reader", model=model, tools=[look]))), "reader", "read all")
        ).text == "done"
        await model.close()
    turns = gemini.requests[-1].body["contents"]
    assert [turn["role"] for turn in turns] == ["model", "user", "model", "user"]
    assert [turn["parts"][0].get("text") for turn in turns] == ["pages 1 and 2: x", "read all", None, None]
