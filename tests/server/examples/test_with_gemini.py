"""Gemini accepts the requests of the examples: demo models reply through a server with its rules."""

import asyncio
from collections.abc import Callable

import pytest

from tests.server.conftest import Serve
from tests.tiers import sampled
from waystation.apps.registry import Registry
from waystation.core.contract import parts_of, text_of
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.models.google_llm import Gemini
from waystation.testing import FakeGemini, ScriptedHuman

PROGRESS: JsonObject = {"action": "progress", "response": {"status": "on its way"}}
QUIET: JsonObject = {**PROGRESS, "wake": False}
CLOSED: JsonObject = {"action": "respond", "response": {"status": "closed"}}
TALKS: list[tuple[str, str, tuple[JsonObject | str, ...]]] = [
    ("calculator_agent", "5 - 3 + 10", ()),
    ("calendar_agent", "What is on?", ("reject",)),
    ("document_analysis_agent", "Keep a.txt: Cats are nice.", ()),
    ("main_agent", "URGENT: the dashboard is empty", ()),
    ("payments_agent", "Pay 500 to Rose for the rent", ({"action": "approve", "comment": "due"},)),
    ("reimbursement_agent", "Please reimburse 200$ for meals", ("approve",)),
    ("stock_price_agent", "What does NOPE cost?", ()),
    ("summarizer_agent", "Summarize: It rained. Nobody came.", ()),
    ("ticket_agent", "The printer smells burnt", (QUIET, PROGRESS, CLOSED)),
    ("travel_desk", "I need a trip to Rome", ("approve",)),
    ("user_preferences_agent", "My theme is dark and my language is Welsh.", ()),
    ("weather_sentiment_agent", "What is the weather in London? I hate rain.", ()),
]
"""Agent, message, and the answers of people."""


class OverHttp(BaseLlm):
    """A demo model behind a server with Gemini's rules; a refused request fails the test."""

    def __init__(self, demo_model: BaseLlm, server: FakeGemini) -> None:
        self._demo_model, self._server = demo_model, server
        self._gemini = Gemini(base_url=server.url, api_key="test")
        self._one_at_a_time = asyncio.Lock()

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the server's reply, which is that of the demo model."""
        reply = (await self._demo_model.generate(request)).content
        async with self._one_at_a_time:
            expected = [(call["name"], call["args"]) for call in parts_of(reply, "functionCall")]
            self._server.reply(text=text_of(reply) or None, calls=expected)
            return await self._gemini.generate(request, on_text=on_text)

    async def close(self) -> None:
        """Release the connections."""
        await self._gemini.close()


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "message", "people"), sampled(TALKS), ids=[talk[0] for talk in sampled(TALKS)])
async def test_gemini_accepts_the_whole_conversation(
    serve: Serve,
    examples: Registry,
    gemini: FakeGemini,
    agent: str,
    message: str,
    people: tuple[JsonObject | str, ...],
) -> None:
    """Gemini accepts declarations, calls with their responses, and waits."""
    root = examples.roots[agent]
    assert root.demo_model is not None
    model = OverHttp(root.demo_model, gemini)
    try:
        async with serve(root.agent, model=model) as env:
            invocation = await env.client.start(agent, message, app=env.client.task_queue)
            await ScriptedHuman(*people).attend(invocation)
            assert (await invocation.result()).text.startswith("[demo model] ")
    finally:
        await model.close()
    assert len(gemini.requests) >= 2
    assert gemini.remaining == 0


def test_every_example_is_tried(examples: Registry) -> None:
    """Every example is tried, including examples that are added later."""
    assert {agent for agent, *_ in TALKS} == set(examples.roots)
