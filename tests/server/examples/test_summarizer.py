"""The summarizer: an agent as a tool, whose answer is the result."""

import pytest

from tests.server.conftest import Serve
from tests.server.examples.conftest import called, texts
from waystation.apps.registry import Registry, Root
from waystation.testing import ScriptedModel, calls, says

TEXT = "It rained. Nobody came. The band played on."


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots["summarizer_agent"]


async def test_the_answer_of_the_called_agent_is_final(serve: Serve, root: Root) -> None:
    """The calling agent's model is called once; the other's answer is the result, and the invocation's text."""
    model = ScriptedModel(calls(("summary_agent", {"request": TEXT})), says("A wet and lonely concert."))
    async with serve(root.agent, model=model) as env:
        invocation = await env.client.start("summarizer_agent", f"Summarize: {TEXT}")
        assert (await invocation.result()).text == "A wet and lonely concert."
        events = [event async for event in invocation.events()]
        child = [event async for event in env.client.invocation(f"{invocation.id}/fc-1").events()]
    assert events[-1].actions.skip_summarization is True
    assert events[-1].function_responses()[0]["response"] == {"result": "A wet and lonely concert."}
    assert texts(child) == ["A wet and lonely concert."]
    outer, inner = model.requests
    assert [tool["name"] for tool in outer.tools] == ["summary_agent"]
    assert outer.tools[0]["description"] == "Summarizes the text in its request."
    assert "at most two sentences" in (inner.system_instruction or "")
    assert inner.contents == [{"role": "user", "parts": [{"text": TEXT}]}]


async def test_the_demo_model_plays_both_models(serve: Serve, root: Root) -> None:
    """The demo model also names itself in either part."""
    async with serve(root.agent, model=root.demo_model) as env:
        invocation = await env.client.start("summarizer_agent", f"Please summarize: {TEXT}")
        text = "[demo model] 8 words, which begin: It rained."
        assert (await invocation.result()).text == text
        events = [event async for event in invocation.events()]
        assert called(events) == [("summary_agent", {"request": TEXT})]
        other = await env.client.run("summarizer_agent", "Good morning")
        assert other.text == "[demo model] I need a text, as in: Summarize: It rained. Nobody came."
