"""The stock price agent: types and docstring describe the tool, and wrong arguments are reported."""

import pytest

from tests.server.conftest import Serve
from tests.server.examples.conftest import answered
from waystation.apps.registry import Registry, Root
from waystation.testing import ScriptedModel, calls, says


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots["stock_price_agent"]


async def test_the_model_sees_types_ranges_and_descriptions(serve: Serve, root: Root) -> None:
    """Types, ranges and descriptions come from the signature and the docstring."""
    model = ScriptedModel(calls(("get_stock_price", {"symbol": "beta", "days_ago": 1.0})), says("42.35 dollars."))
    async with serve(root.agent, model=model) as env:
        invocation = await env.client.start("stock_price_agent", "What did BETA cost yesterday?")
        assert (await invocation.result()).text == "42.35 dollars."
        events = [event async for event in invocation.events()]
    assert answered(events) == [{"symbol": "BETA", "price": 42.35, "currency": "USD"}]
    (tool,) = model.requests[0].tools
    schema = tool["parametersJsonSchema"]
    assert schema["required"] == ["symbol"]
    properties = schema["properties"]
    assert properties["symbol"] == {
        "title": "Symbol",
        "type": "string",
        "description": "Ticker symbol, such as ALPH.",
    }
    assert (properties["days_ago"]["minimum"], properties["days_ago"]["maximum"]) == (0, 2)
    assert properties["currency"]["default"] == "USD"
    assert properties["currency"]["description"] == "Currency of the price."
    assert schema["$defs"]["Currency"]["enum"] == ["USD", "EUR"]


CONVERSATIONS: list[tuple[str, str]] = [
    ("What does ALPH cost in EUR?", "ALPH: 90.6 EUR."),
    ("What did ALPH cost 2 days ago?", "ALPH: 182.75 USD."),
    ("hello", "I need a symbol in capitals, as in: What does ALPH cost in EUR?"),
    ("What does NOPE cost?", "No price. No stock has the symbol 'NOPE'; known are ALPH, BETA."),
]


async def test_the_demo_model_follows_its_rules(serve: Serve, root: Root) -> None:
    """The demo model also names itself."""
    async with serve(root.agent, model=root.demo_model) as env:
        for message, text in CONVERSATIONS:
            result = await env.client.run("stock_price_agent", message)
            assert result.text == f"[demo model] {text}"


@pytest.mark.parametrize(
    ("message", "parameter"),
    [("What did ALPH cost 9 days ago?", "days_ago"), ("What does ALPH cost in GBP?", "currency")],
)
async def test_invalid_arguments_are_reported_to_the_model(
    serve: Serve, root: Root, message: str, parameter: str
) -> None:
    """The function does not run, and the invocation continues."""
    async with serve(root.agent, model=root.demo_model) as env:
        invocation = await env.client.start("stock_price_agent", message)
        assert (await invocation.result()).text.startswith("[demo model] No price. Invoking `get_stock_price()`")
        (answer,) = answered([event async for event in invocation.events()])
        assert f"Parameter '{parameter}'" in answer["error"]
