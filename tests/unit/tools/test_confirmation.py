"""Whether a person has to agree before a tool runs."""

from collections.abc import Callable
from typing import Any

import pytest

from waystation.core import Confirmation, JsonObject
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

ADK_HINT = (
    "Please approve or reject the tool call pay() by responding with a FunctionResponse with an expected "
    "ToolConfirmation payload."
)


def pay(amount: int, currency: str = "EUR", tool_context: ToolContext | None = None) -> str:
    return f"{amount} {currency}"


async def asked(predicate: Any, args: JsonObject, context: ToolContext | None = None) -> bool:
    tool = FunctionTool(pay, require_confirmation=predicate)
    return await tool.confirmation_for(args, context or ToolContext()) is not None


async def test_a_tool_without_the_flag_needs_nobody() -> None:
    """The default."""
    assert await FunctionTool(pay).confirmation_for({"amount": 1}, ToolContext()) is None


async def test_the_default_hint_is_adks() -> None:
    """Clients compare it."""
    tool = FunctionTool(pay, require_confirmation=True)
    assert await tool.confirmation_for({"amount": 1}, ToolContext()) == Confirmation(hint=ADK_HINT)


async def test_a_hint_of_ones_own_is_used() -> None:
    """ADK has no place for one."""
    tool = FunctionTool(pay, require_confirmation=True, hint="Really?")
    assert await tool.confirmation_for({"amount": 1}, ToolContext()) == Confirmation(hint="Really?")


async def test_the_flag_asks_even_about_incomplete_arguments() -> None:
    """As ADK does: the person may complete them with `edit`."""
    assert await asked(True, {})


async def test_a_predicate_decides_by_the_arguments() -> None:
    """Sync or async."""

    async def large(amount: int, currency: str) -> bool:
        return amount > 100

    for predicate in (lambda amount, currency: amount > 100, large):
        assert await asked(predicate, {"amount": 101})
        assert not await asked(predicate, {"amount": 100})


async def test_a_predicate_sees_what_the_function_will_see() -> None:
    """Converted arguments and the function's defaults; else a model could slip a string past a comparison."""
    seen: list[object] = []

    def look(amount: object, currency: object) -> bool:
        seen.append((amount, currency))
        return False

    await asked(look, {"amount": "5000", "currency": "USD", "unknown": 1})
    await asked(look, {"amount": 1})
    assert seen == [(5000, "USD"), (1, "EUR")]


@pytest.mark.parametrize(
    "predicate",
    [
        lambda amount: amount == 5,
        lambda **arguments: sorted(arguments) == ["amount", "currency", "tool_context"],
        lambda tool_context: tool_context.user_id == "dana",
        lambda: True,
    ],
)
async def test_a_predicate_takes_what_it_wants(predicate: Callable[..., bool]) -> None:
    """The context counts among the arguments."""
    assert await asked(predicate, {"amount": 5}, ToolContext(user_id="dana"))


async def test_a_predicate_receives_the_context_by_annotation() -> None:
    """By the same rule as the function."""

    def by_user(ctx: ToolContext) -> bool:
        return ctx.user_id == "dana"

    assert await asked(by_user, {"amount": 5}, ToolContext(user_id="dana"))


async def test_a_predicate_that_raises_counts_as_yes() -> None:
    """When it cannot be decided, a person decides."""
    assert await asked(lambda amount: 1 / 0, {"amount": 5})
    assert await asked(lambda nothing_of_the_kind: False, {"amount": 5})


@pytest.mark.parametrize("args", [{}, {"amount": "much"}])
async def test_a_predicate_is_not_asked_about_arguments_the_function_refuses(args: JsonObject) -> None:
    """The model is told, nothing runs, and nobody is bothered."""
    assert not await asked(lambda amount: True, args)


async def test_a_predicate_cannot_change_the_arguments() -> None:
    """It gets copies."""

    def post(items: list[int]) -> None: ...

    args = {"items": [1]}
    tool = FunctionTool(post, require_confirmation=lambda items: items.append(2))
    await tool.confirmation_for(args, ToolContext())
    assert args == {"items": [1]}


async def test_a_custom_tool_may_override_adks_check() -> None:
    """`check_require_confirmation` is where tools written for ADK decide."""

    class Guarded(BaseTool):
        async def check_require_confirmation(self, args: JsonObject, tool_context: ToolContext) -> bool:
            return bool(args["risky"])

    tool = Guarded(name="pay", description="")
    assert await tool.confirmation_for({"risky": True}, ToolContext()) == Confirmation(hint=ADK_HINT)
    assert await tool.confirmation_for({"risky": False}, ToolContext()) is None
