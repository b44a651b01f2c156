"""Validation of budgets, and their prices and grants."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.budget import Budget, Grant, Price, Usage, parse_grant
from waystation.core.contract import parse_input
from waystation.core.errors import InvalidInput

PRICES = {"*": {"prompt": 1, "output": 1}}


@pytest.mark.parametrize(
    ("budget", "field"),
    [
        ({"max_total_tokens": 0}, "budget.max_total_tokens"),
        ({"max_total_tokens": -5}, "budget.max_total_tokens"),
        ({"max_total_tokens": "many"}, "budget.max_total_tokens"),
        ({"max_tool_calls": -1}, "budget.max_tool_calls"),
        ({"max_wall_s": 0}, "budget.max_wall_s"),
        ({"max_cost": -0.5, "prices": PRICES}, "budget.max_cost"),
        ({"prices": {"gemini": {"prompt": -1, "output": 1}}}, "budget.prices.gemini.prompt"),
        ({"prices": {"gemini": {"prompt": 1}}}, "budget.prices.gemini.output"),
        ({"prices": {"": {"prompt": 1, "output": 1}}}, "budget.prices"),
        ({"on_exhausted": "panic"}, "budget.on_exhausted"),
    ],
)
def test_an_invalid_budget_is_refused(budget: dict[str, Any], field: str) -> None:
    """The error names the field, and the invocation does not begin."""
    data = json.dumps({"agent": "a", "message": "m", "budget": budget}).encode()
    with pytest.raises(InvalidInput) as refused:
        parse_input(data)
    assert field in str(refused.value)


@pytest.mark.parametrize("limit", ["max_wall_s", "max_cost"])
def test_a_limit_that_is_not_a_number_is_refused(limit: str) -> None:
    """NaN is refused as a limit, because no amount would ever exceed it."""
    with pytest.raises(ValueError, match=limit):
        Budget.model_validate({limit: float("nan"), "prices": PRICES})


def test_the_longest_matching_name_sets_the_price() -> None:
    """Every name of the model is matched by prefix, and `*` applies only if no other name matches."""
    rows = {name: Price(prompt=n, output=n) for n, name in enumerate(("*", "gemini", "gemini-3.5-flash"))}
    budget = Budget(prices=rows)
    assert budget.price(["gemini-3.5-flash-001"]) == rows["gemini-3.5-flash"]
    assert budget.price(["gemini-1.5-pro"]) == rows["gemini"]
    assert budget.price(["alias", "gemini-3.5-flash"]) == rows["gemini-3.5-flash"]
    assert budget.price(["claude"]) == rows["*"]
    assert Budget(prices={"gemini": rows["gemini"]}).price(["claude"]) is None


def test_a_price_in_the_budget_precedes_the_table() -> None:
    """The table applies only to models without a price in the budget, under any of their names."""
    own, listed = Price(prompt=1, output=1), Price(prompt=2, output=2)
    budget = Budget(max_cost=1, prices={"gemini": own})
    assert budget.price(["gemini-3.5-flash"], {"gemini-3.5-flash": listed}) == own
    assert budget.price(["alias", "claude"], {"claude": listed}) == listed
    assert Budget(max_cost=1).price(["claude"], {}) is None


def test_cached_tokens_have_a_price_of_their_own() -> None:
    """Without their own price, cached tokens cost the same as others; a count above the prompt's is corrected."""
    usage = Usage(prompt_tokens=100, cached_tokens=60, output_tokens=5, thoughts_tokens=5)
    assert Price(prompt=1e6, cached=1e5, output=1e7).of(usage) == pytest.approx(40 + 6 + 100)
    assert Price(prompt=1e6, output=0).of(usage) == pytest.approx(100)
    assert Price(prompt=1e6, cached=0, output=0).of(Usage(prompt_tokens=1, cached_tokens=9)) == 0


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_grant_raises_only_existing_limits(limit: int, more: int) -> None:
    """A grant does not set a limit that the budget does not have."""
    raised = Budget(max_total_tokens=limit).raised(Grant(max_total_tokens=more, max_tool_calls=5))
    assert (raised.max_total_tokens, raised.max_tool_calls) == (limit + more, None)


@pytest.mark.parametrize(
    "response", [{"max_total_tokens": -1}, {"max_total_tokens": "many"}, {"tokens": 5}, {"max_total_tokens": 0}]
)
def test_an_invalid_grant_is_refused(response: dict[str, Any]) -> None:
    """Grants with unknown limits, without an amount or with invalid numbers are refused."""
    with pytest.raises(ValueError, match=r"."):
        parse_grant(response, Budget(max_total_tokens=100), ["max_total_tokens"])


def test_an_approval_without_amounts_grants_the_original_amount_again() -> None:
    """Only the limits that are used up are granted again."""
    budget = Budget(max_total_tokens=100, max_tool_calls=7)
    assert parse_grant(None, budget, ["max_total_tokens"]) == Grant(max_total_tokens=100)
