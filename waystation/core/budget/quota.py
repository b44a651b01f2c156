"""Quotas: rate limits for models, and budgets for tenants and users, which all workers share."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from waystation.core.budget.budget import OTHERS, Amount, Price

Positive = Annotated[int, Field(gt=0)]
Period: TypeAlias = Literal["day", "month"]
QUOTA_WAIT = (
    "waystation_quota_wait_seconds",
    "Time for which a quota delays a model call, for each attempt that it delays",
)
"""Name and description of a metric."""


class _Table(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ModelLimit(_Table):
    """The rate at which all workers together may call the models whose names begin with `model`.

    They share the limit, but calls with different API keys have a limit each. Without numbers, the workers only share a
    provider's `Retry-After`.
    """

    model: str
    """The beginning of the models' names, or `*` for all models to which no other limit applies."""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None


class PeriodBudget(_Table):
    """The limit of a tenant or a user for each day or month, in UTC."""

    tenant: str = OTHERS
    """A tenant, `*` for each tenant without a budget of its own, or an empty string for no tenant."""
    user: str | None = None
    """A user ID, or `*` for each user without a budget of their own. If None, the budget is that of the tenant."""
    period: Period
    max_cost: Amount | None = None
    max_total_tokens: Positive | None = None

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_cost is None and self.max_total_tokens is None:
            raise ValueError("has no limit; set max_cost or max_total_tokens")
        return self

    def is_for(self, tenant: str, user: str) -> bool:
        """Return whether the budget applies to this user, or to this user's tenant."""
        return self.tenant in (tenant, OTHERS) and self.user in (user, OTHERS, None)


class Quotas(_Table):
    """The limits and budgets that workers enforce before they call a model."""

    store: str = ".waystation/quotas.db"
    """The store that counts the calls: an SQLite file or a PostgreSQL URL. All workers must use the same one."""
    limits: tuple[ModelLimit, ...] = ()
    budgets: tuple[PeriodBudget, ...] = ()
    prices: dict[str, Price] = Field(default_factory=dict)
    """Prices of models, as in `Budget.prices`. They take precedence over the worker's table."""

    @model_validator(mode="after")
    def _check_repetitions(self) -> Self:
        keys = [limit.model for limit in self.limits]
        keys += [f"{budget.period} {budget.tenant} {budget.user}" for budget in self.budgets]
        if repeated := next((key for key in keys if keys.count(key) > 1), None):
            raise ValueError(f"two limits or budgets are for {repeated!r}; remove one of them")
        return self

    def find_limit(self, model: str) -> ModelLimit | None:
        """Return the limit with the longest `model` that begins the name, or the one for `*`, or None."""
        matches = [limit for limit in self.limits if model.startswith(limit.model)]
        others = next((limit for limit in self.limits if limit.model == OTHERS), None)
        return max(matches, key=lambda limit: len(limit.model), default=others)

    def find_budgets(self, tenant: str, user: str) -> list[PeriodBudget]:
        """Return the budgets of a tenant and a user: for each of them and each period, the most specific one."""
        found: dict[tuple[bool, Period], PeriodBudget] = {}
        for budget in sorted(self.budgets, key=lambda budget: (budget.tenant != OTHERS, budget.user != OTHERS)):
            if budget.is_for(tenant, user):
                found[budget.user is None, budget.period] = budget
        return list(found.values())


class Amounts(NamedTuple):
    """A number of model calls, and what they used."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0


def list_periods(now: float) -> dict[Period, str]:
    """Return the names of the current day and month, such as `2026-11-23` and `2026-11`."""
    day = datetime.fromtimestamp(now, UTC).date().isoformat()
    return {"day": day, "month": day[:7]}


def find_period_end(period: Period, now: float) -> datetime:
    """Return when the current day or month ends."""
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return day + timedelta(days=1)
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)


def list_exhausted(budget: PeriodBudget, spent: Amounts) -> Iterator[str]:
    """Yield a description of each limit of a budget that is used up, such as `1.02 of 1.00`."""
    if budget.max_cost is not None and spent.cost >= budget.max_cost:
        yield f"cost {spent.cost:.4f} of {budget.max_cost:g}"
    if budget.max_total_tokens is not None and spent.tokens >= budget.max_total_tokens:
        yield f"{spent.tokens:,} of {budget.max_total_tokens:,} tokens"
