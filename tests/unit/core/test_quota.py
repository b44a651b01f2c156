"""Quotas: which limits and budgets apply, and when their periods end."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from waystation.core.budget import (
    Amounts,
    ModelLimit,
    PeriodBudget,
    Quotas,
    find_period_end,
    list_exhausted,
    list_periods,
)

NEW_YEARS_EVE = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def test_the_limit_with_the_longest_prefix_applies() -> None:
    """The key `*` applies only to models that no other limit names."""
    quotas = Quotas(limits=tuple(ModelLimit(model=name) for name in ("gpt-5", "gpt-5-mini", "*")))
    limits = {name: quotas.find_limit(name) for name in ("gpt-5.1", "gpt-5-mini-2026", "claude-5")}
    assert {name: limit and limit.model for name, limit in limits.items()} == {
        "gpt-5.1": "gpt-5",
        "gpt-5-mini-2026": "gpt-5-mini",
        "claude-5": "*",
    }
    assert Quotas(limits=(ModelLimit(model="gpt-5"),)).find_limit("claude-5") is None


def test_the_most_specific_budget_applies_to_tenant_and_user_each() -> None:
    """A budget of one tenant replaces that of all tenants for the same period, but not budgets of users."""
    budgets = (
        PeriodBudget(period="day", max_cost=1),
        PeriodBudget(period="month", max_cost=2),
        PeriodBudget(tenant="acme", period="month", max_cost=3),
        PeriodBudget(user="*", period="day", max_cost=4),
        PeriodBudget(user="ann", period="day", max_cost=5),
        PeriodBudget(tenant="acme", user="*", period="day", max_cost=6),
    )
    quotas = Quotas(budgets=budgets)

    def costs(tenant: str, user: str) -> set[float | None]:
        return {budget.max_cost for budget in quotas.find_budgets(tenant, user)}

    assert costs("", "bob") == {1, 2, 4}
    assert costs("globex", "ann") == {1, 2, 5}
    assert costs("acme", "bob") == {1, 3, 6}


def test_periods_follow_utc() -> None:
    """A day ends at midnight, and a month at the end of its last day."""
    assert list_periods(NEW_YEARS_EVE) == {"day": "2026-12-31", "month": "2026-12"}
    ends = {find_period_end("day", NEW_YEARS_EVE), find_period_end("month", NEW_YEARS_EVE)}
    assert ends == {datetime(2027, 1, 1, tzinfo=UTC)}
    assert find_period_end("month", NEW_YEARS_EVE - 30 * 86_400) == datetime(2027, 1, 1, tzinfo=UTC)


def test_a_budget_is_used_up_when_a_limit_is_reached() -> None:
    """Each limit that is reached is described."""
    budget = PeriodBudget(period="day", max_cost=1.5, max_total_tokens=1_000)
    assert list(list_exhausted(budget, Amounts(9, 999, 1.4999))) == []
    assert list(list_exhausted(budget, Amounts(9, 1_000, 1.6))) == ["cost 1.6000 of 1.5", "1,000 of 1,000 tokens"]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"budgets": [{"period": "day"}]}, "has no limit; set max_cost or max_total_tokens"),
        ({"budgets": [{"period": "week", "max_cost": 1}]}, "'day' or 'month'"),
        ({"limits": [{"model": "a", "requests_per_minute": 0}]}, "greater than 0"),
        ({"limits": [{"model": "a"}, {"model": "a"}]}, "two limits or budgets are for 'a'"),
        ({"limits": [{"model": "a", "rpm": 5}]}, "Extra inputs are not permitted"),
    ],
)
def test_an_invalid_quota_is_refused(table: dict[str, Any], problem: str) -> None:
    """The error names the problem."""
    with pytest.raises(ValidationError, match=problem):
        Quotas.model_validate(table)
