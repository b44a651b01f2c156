"""The weather agent: two function tools, one after the other."""

import pytest

from tests.server.conftest import Serve
from tests.server.examples.conftest import answered, called
from waystation.apps.registry import Registry, Root
from waystation.testing import ScriptedModel, calls, says

LONDON = "The weather in London is cloudy, 18 degrees Celsius, with a chance of rain."


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots["weather_sentiment_agent"]


async def test_a_model_uses_one_tool_after_the_other(serve: Serve, root: Root) -> None:
    """The next model call has the earlier response."""
    model = ScriptedModel(
        calls(("get_weather_report", {"city": "London"})),
        calls(("analyze_sentiment", {"text": "I hate rain."})),
        says("Cloudy, alas."),
    )
    async with serve(root.agent, model=model) as env:
        invocation = await env.client.start("weather_sentiment_agent", "What is the weather in London? I hate rain.")
        assert (await invocation.result()).text == "Cloudy, alas."
        events = [event async for event in invocation.events()]
    assert answered(events) == [
        {"status": "success", "report": LONDON},
        {"sentiment": "negative", "confidence": 0.8},
    ]
    assert [len(request.contents) for request in model.requests] == [1, 3, 5]


CONVERSATIONS: list[tuple[str, str, list[str]]] = [
    (
        "What is the weather in London? I hate rain.",
        f"{LONDON} What you said sounds negative.",
        ["get_weather_report", "analyze_sentiment"],
    ),
    (
        "what is it like in paris? Great, I love sunny days!",
        "The weather in Paris is sunny, 25 degrees Celsius. What you said sounds positive.",
        ["get_weather_report", "analyze_sentiment"],
    ),
    ("What is the weather in London?", LONDON, ["get_weather_report"]),
    ("What is the weather in Bern? Good, is it?", "There is no weather report for 'Bern'.", ["get_weather_report"]),
    ("Hello", "I need a city, as in: What is the weather in London? I hate rain.", []),
]


async def test_the_demo_model_follows_its_rules(serve: Serve, root: Root) -> None:
    """The demo model also names itself."""
    async with serve(root.agent, model=root.demo_model) as env:
        for message, text, tools in CONVERSATIONS:
            invocation = await env.client.start("weather_sentiment_agent", message)
            assert (await invocation.result()).text == f"[demo model] {text}"
            assert [name for name, _ in called([event async for event in invocation.events()])] == tools
