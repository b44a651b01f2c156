"""The built-in demo model calls tools with arguments from the message, and reports their responses."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from waystation import Agent, FunctionTool
from waystation.activities import DEMO, Models
from waystation.core.contract import text_of
from waystation.core.payload import JsonObject
from waystation.models import FallbackModel, Gemini, LlmRequest
from waystation.models.demo_model import demo_model
from waystation.testing import FunctionModel
from waystation.tools.transfer import TransferToAgentTool


class Node(BaseModel):
    """A schema that refers to itself."""

    name: str
    parent: "Node | None"


def refund(order: str, amount: float) -> dict[str, str]:
    """Refund an order."""
    return {}


def find_weather(city: str, unit: Literal["celsius", "kelvin"], days: int = 1) -> dict[str, str]:
    """Look up the forecast of a city."""
    return {}


def order(item: str, quantity: int) -> dict[str, str]:
    """Order an item."""
    return {}


def forward(message: str) -> dict[str, str]:
    """Forward a message."""
    return {}


def rename(node: Node, name: str | None) -> dict[str, str]:
    """Rename an item."""
    return {}


async def parts(message: str, *tools: Callable[..., Any], **fields: Any) -> list[JsonObject]:
    """Return the parts of the reply to a message."""
    declared = [FunctionTool(tool)._get_declaration() or {} for tool in tools]
    reply_parts: list[JsonObject] = (
        await _reply({"role": "user", "parts": [{"text": message}]}, tools=declared, **fields)
    ).get("parts", [])
    return reply_parts


async def _reply(*contents: JsonObject, **fields: Any) -> JsonObject:
    response = await demo_model.generate(LlmRequest(model="any", contents=contents, **fields))
    return response.content or {}


@pytest.mark.parametrize(
    ("message", "name", "args"),
    [
        ("Refund 20 dollars for order 7", "refund", {"order": "7", "amount": 20.0}),
        ("Please refund order A-7: 12.50", "refund", {"order": "A-7", "amount": 12.5}),
        ("refund(order='x', amount=200)", "refund", {"order": "x", "amount": 200}),
        (
            "What is the forecast for 'New York' in kelvin? It's for me",
            "find_weather",
            {"city": "New York", "unit": "kelvin"},
        ),
        (
            "find_weather(city='Rome', unit='kelvin', days=3)",
            "find_weather",
            {"city": "Rome", "unit": "kelvin", "days": 3},
        ),
        ("Rename it to blue", "rename", {"node": {"name": "text", "parent": None}, "name": "blue"}),
        ("order 50 pencils", "order", {"item": "pencils", "quantity": 50}),
        ("Place an order: 2 chairs from Ikea Berlin", "order", {"item": "Ikea Berlin", "quantity": 2}),
        ("Forward this, please", "forward", {"message": "Forward this, please"}),
    ],
)
async def test_a_message_calls_the_tool_that_it_names(message: str, name: str, args: JsonObject) -> None:
    """Numbers, quoted text, choices and values after a parameter's name become arguments."""
    [part] = await parts(message, refund, find_weather, rename, order, forward)
    assert part == {"functionCall": {"name": name, "args": args}}


async def test_a_message_that_names_no_tool_is_answered_with_an_example() -> None:
    """The example of a call is itself a message that calls the tool."""
    [part] = await parts("Hello", refund)
    text = part["text"]
    assert text == "[demo model] You wrote: Hello\nTo call a tool, write: refund(order='text', amount=1)"
    [part] = await parts(text.split("write: ")[1], refund)
    assert part["functionCall"]["name"] == "refund"


@pytest.mark.parametrize("message", ["refund(", "refund(*a)", "refund(1)", "refund(order=open('x'))", "f()", "(" * 500])
async def test_code_in_a_message_never_runs(message: str) -> None:
    """Only literal arguments by name form a call; other code is text."""
    for part in await parts(message, refund):
        assert part.get("text") or part["functionCall"]["args"]["order"] in ("refund", "x")


async def test_the_response_of_a_tool_is_reported() -> None:
    """The reply after a response contains its JSON."""
    response = {"functionResponse": {"name": "refund", "response": {"status": "ok"}}}
    content = await _reply(
        {"role": "user", "parts": [{"text": "Refund order 7"}]}, {"role": "user", "parts": [response]}
    )
    assert text_of(content) == '[demo model] refund: {"status": "ok"}'


async def test_a_transfer_needs_the_name_of_an_agent() -> None:
    """Other messages with the word "transfer" do not transfer to an agent."""
    tool = TransferToAgentTool(["billing_agent", "support"])._get_declaration()
    assert tool is not None
    contents = (
        {"role": "user", "parts": [{"text": "Transfer 5 dollars"}]},
        {"role": "user", "parts": [{"text": "I need support"}]},
    )
    stays, leaves = [(await _reply(content, tools=[tool]))["parts"][0] for content in contents]
    assert "text" in stays
    assert leaves["functionCall"]["args"] == {"agent_name": "support"}


async def test_the_reply_matches_an_output_schema() -> None:
    """The final text is JSON that the schema allows."""
    [part] = await parts("Hello", config={"responseJsonSchema": Node.model_json_schema()})
    assert Node.model_validate_json(part["text"]) == Node(name="text", parent=None)


def test_demo_replaces_services_but_not_an_authors_models() -> None:
    """The option `--model demo` calls no service: it prefers the package's demo model, then the built-in one."""
    own, others = (
        FunctionModel(lambda _: "own"),
        ("gemini-3.5-flash", Gemini(model="gemini-3.5-flash"), FallbackModel(["gemini-3.5-flash"])),
    )
    models = Models(DEMO)
    for model in others:
        agent = Agent(name="a", model=model)
        assert models.of(agent) is demo_model
        assert models.of(agent, own) is own
    assert models.of(Agent(name="a", model=own)) is own
