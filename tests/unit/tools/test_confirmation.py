"""Deciding whether a call needs a confirmation."""

from collections.abc import Callable
from typing import Any

import pytest

from waystation.core.contract import Confirmation
from waystation.core.payload import JsonObject
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

ADK_HINT = (
    "Please approve or reject the tool call pay() by responding with a FunctionResponse with an expected "
    "ToolConfirmation payload."
)


def pay(amount: int, currency: str = "EUR", tool_context: ToolContext | None = None) -> str:
    return f"{amount} {currency}"


async def needs_confirmation(predicate: Any, args: JsonObject, context: ToolContext | None = None) -> bool:
    tool = FunctionTool(pay, require_confirmation=predicate)
    return await tool.confirmation_for(args, context or ToolContext()) is not None


async def test_a_tool_without_the_flag_needs_no_confirmation() -> None:
    """A tool needs no confirmation by default."""
    assert await FunctionTool(pay).confirmation_for({"amount": 1}, ToolContext()) is None


async def test_the_default_hint_equals_adks() -> None:
    """The default hint equals ADK's, because clients compare it."""
    tool = FunctionTool(pay, require_confirmation=True)
    assert await tool.confirmation_for({"amount": 1}, ToolContext()) == Confirmation(hint=ADK_HINT)


async def test_a_custom_hint_is_used() -> None:
    """The custom hint, for which ADK has no option, is used."""
    tool = FunctionTool(pay, require_confirmation=True, hint="Really?")
    assert await tool.confirmation_for({"amount": 1}, ToolContext()) == Confirmation(hint="Really?")


async def test_the_flag_applies_to_incomplete_arguments() -> None:
    """Incomplete arguments need a confirmation, too, because the approver may complete them with `edit`, as in ADK."""
    assert await needs_confirmation(True, {})


async def test_a_predicate_decides_by_the_arguments() -> None:
    """A sync or async predicate decides by the arguments."""

    async def large(amount: int, currency: str) -> bool:
        return amount > 100

    for predicate in (lambda amount, currency: amount > 100, large):
        assert await needs_confirmation(predicate, {"amount": 101})
        assert not await needs_confirmation(predicate, {"amount": 100})


async def test_a_predicate_receives_the_arguments_of_the_function() -> None:
    """The predicate receives converted arguments and defaults, so a string cannot avoid a comparison."""
    received: list[object] = []

    def look(amount: object, currency: object) -> bool:
        received.append((amount, currency))
        return False

    await needs_confirmation(look, {"amount": "5000", "currency": "USD", "unknown": 1})
    await needs_confirmation(look, {"amount": 1})
    assert received == [(5000, "USD"), (1, "EUR")]


@pytest.mark.parametrize(
    "predicate",
    [
        lambda amount: amount == 5,
        lambda **arguments: sorted(arguments) == ["amount", "currency", "tool_context"],
        lambda tool_context: tool_context.user_id == "dana",
        lambda: True,
    ],
)
async def test_a_predicate_receives_the_arguments_that_it_names(predicate: Callable[..., bool]) -> None:
    """A predicate receives only the arguments that it names, and may name the context."""
    assert await needs_confirmation(predicate, {"amount": 5}, ToolContext(user_id="dana"))


async def test_a_predicate_receives_the_context_by_annotation() -> None:
    """The context is injected by the same rule as for the function."""

    def by_user(ctx: ToolContext) -> bool:
        return ctx.user_id == "dana"

    assert await needs_confirmation(by_user, {"amount": 5}, ToolContext(user_id="dana"))


async def test_a_predicate_that_raises_counts_as_true() -> None:
    """A predicate that raises counts as true, so that an approver decides."""
    assert await needs_confirmation(lambda amount: 1 / 0, {"amount": 5})
    assert await needs_confirmation(lambda nothing_of_the_kind: False, {"amount": 5})


@pytest.mark.parametrize("args", [{}, {"amount": "much"}])
async def test_a_predicate_is_not_called_for_invalid_arguments(args: JsonObject) -> None:
    """The model receives the error, nothing runs, and no approver is asked."""
    assert not await needs_confirmation(lambda amount: True, args)


async def test_a_predicate_cannot_change_the_arguments() -> None:
    """A predicate receives copies of the arguments."""

    def post(items: list[int]) -> None: ...

    args = {"items": [1]}
    tool = FunctionTool(post, require_confirmation=lambda items: items.append(2))
    await tool.confirmation_for(args, ToolContext())
    assert args == {"items": [1]}


async def test_a_custom_tool_may_override_adks_check() -> None:
    """The method `check_require_confirmation`, which tools for ADK have, decides."""

    class Guarded(BaseTool):
        async def check_require_confirmation(self, args: JsonObject, tool_context: ToolContext) -> bool:
            return bool(args["risky"])

    tool = Guarded(name="pay", description="")
    assert await tool.confirmation_for({"risky": True}, ToolContext()) == Confirmation(hint=ADK_HINT)
    assert await tool.confirmation_for({"risky": False}, ToolContext()) is None
