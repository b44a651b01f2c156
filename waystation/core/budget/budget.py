"""Budgets: the limits of an invocation, its usage, and grants that raise the limits."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from waystation.core.payload import JsonObject, Recorded, describe_faults

MAX_MODEL_CALLS = 500
"""The default of ADK's `max_llm_calls`."""

Policy: TypeAlias = Literal["stop", "wrap_up", "ask"]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
OTHERS = "*"
"""Key in a price table for every model that has no price of its own."""


class Price(Recorded):
    """The price of a model per million tokens, in the currency of `max_cost`."""

    prompt: Rate
    output: Rate
    """Price of output tokens, including thinking tokens."""
    cached: Rate | None = None
    """Price of cached prompt tokens. Defaults to `prompt`."""

    def of(self, usage: "Usage") -> float:
        """Return the cost of the given usage."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        reread = self.prompt if self.cached is None else self.cached
        written = usage.output_tokens + usage.thoughts_tokens
        return ((usage.prompt_tokens - cached) * self.prompt + cached * reread + written * self.output) / 1_000_000


class Budget(Recorded):
    """The limits of an invocation. They cover the agents that it calls and all retries."""

    max_llm_calls: int = MAX_MODEL_CALLS
    """Maximum number of attempts to call a model, including retries. If 0 or negative, no model is called."""
    max_total_tokens: Annotated[int, Field(gt=0)] | None = None
    max_tool_calls: Count | None = None
    max_wall_s: Amount | None = None
    """Maximum number of seconds during which a model or tool is running, as workers measure. Time spent waiting for
    approvers does not count."""
    max_cost: Amount | None = None
    """Maximum cost, in the currency of `prices`, or in US dollars if the prices come from the worker's table."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Prices by model name, by prefix of a model name, or under `*` for all other models. The longest match applies.
    With `max_cost`, workers use their own table for models without a price here."""
    on_exhausted: Policy | None = None
    """The action when a limit is reached. By default, reaching `max_llm_calls` stops the invocation, as in ADK, and
    reaching any other limit makes the agent wrap up."""

    @field_validator("prices")
    @classmethod
    def _names(cls, prices: dict[str, Price]) -> dict[str, Price]:
        if "" in prices:
            raise ValueError("a price has no model; `*` stands for all others")
        return prices

    def policy(self, limit: str) -> Policy:
        """Return what happens when the given limit is reached: `on_exhausted`, or the default for this limit."""
        return self.on_exhausted or ("stop" if limit == "max_llm_calls" else "wrap_up")

    def price(self, names: Collection[str], table: Mapping[str, Price] | None = None) -> Price | None:
        """Return the price of a model that goes by any of these names, or None if it has no price.

        The longest key of `prices` that is a prefix of one of the names applies, or else the key `*`, or else the first
        of the names in `table`.
        """
        fitting = [row for row in self.prices if any(name.startswith(row) for name in names)]
        price = self.prices.get(max(fitting, key=len) if fitting else OTHERS)
        return price or next((table[name] for name in names if table and name in table), None)

    def raised(self, by: "Grant") -> "Budget":
        """Return the budget with the grant added to those limits that are set. The other limits stay unset."""
        if by is NOTHING or by == NOTHING:
            return self
        return self.model_copy(update={limit: value + getattr(by, limit) for limit, value in self.limits().items()})

    def limits(self) -> dict[str, int | float]:
        """Return the limits that are set, keyed by name."""
        return {limit: value for limit in MEASURES if (value := getattr(self, limit)) is not None}


GENAI_COUNTS = {
    "prompt_tokens": "prompt_token_count",
    "output_tokens": "candidates_token_count",
    "thoughts_tokens": "thoughts_token_count",
    "cached_tokens": "cached_content_token_count",
    "total_tokens": "total_token_count",
}
"""The name of each count of `Usage` in genai's `usage_metadata`."""


MAX_TOKENS = 10**12


def to_token_count(value: Any) -> int:
    """Return a number of tokens that a service reported, between 0 and `MAX_TOKENS`. Anything but a number counts as 0.

    A negative number would credit the budget, and JSON cannot carry any size.
    """
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else 0
    return min(max(value, 0), MAX_TOKENS) if isinstance(value, int) else 0


TokenCount = Annotated[int, BeforeValidator(to_token_count)]


class Usage(Recorded):
    """Token counts as reported by the model provider."""

    prompt_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    thoughts_tokens: TokenCount = 0
    cached_tokens: TokenCount = 0
    total_tokens: TokenCount = 0

    @classmethod
    def from_genai(cls, usage_metadata: Any) -> "Usage | None":
        """Return the counts of a genai `usage_metadata`, or None if there is none."""
        if usage_metadata is None:
            return None
        return cls(**{name: getattr(usage_metadata, key) for name, key in GENAI_COUNTS.items()})

    def __add__(self, other: "Usage | None") -> "Usage":
        if other is None or other is NO_USAGE:
            return self
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})

    @property
    def total(self) -> int:
        """Total number of tokens, computed from the other counts if the provider does not report a total."""
        return self.total_tokens or self.prompt_tokens + self.output_tokens + self.thoughts_tokens


NO_USAGE = Usage()


class Spent(Recorded):
    """The usage of an invocation so far, including the agents it called and all retries."""

    model_calls: int = 0
    """Number of attempts to call a model."""
    total_tokens: int = 0
    tool_calls: int = 0
    """Number of tool calls, each counted once no matter how many times it was retried. A call to an agent counts as
    one, and the calls that this agent makes count as well."""
    working_s: float = 0.0
    """Seconds during which a model or tool was running."""
    cost: float = 0.0
    unpriced: tuple[str, ...] = ()
    """Models that were called but have no price. Their usage is missing from `cost`."""

    def __add__(self, other: "Spent") -> "Spent":
        if other is NOTHING_SPENT:
            return self
        return Spent(
            model_calls=self.model_calls + other.model_calls,
            total_tokens=self.total_tokens + other.total_tokens,
            tool_calls=self.tool_calls + other.tool_calls,
            working_s=round(self.working_s + other.working_s, 6),
            cost=round(self.cost + other.cost, 12),
            unpriced=tuple(dict.fromkeys((*self.unpriced, *other.unpriced))),
        )


NOTHING_SPENT = Spent()

MEASURES = {
    "max_llm_calls": ("model_calls", "model calls"),
    "max_total_tokens": ("total_tokens", "tokens"),
    "max_tool_calls": ("tool_calls", "tool calls"),
    "max_wall_s": ("working_s", "seconds of work"),
    "max_cost": ("cost", "of cost"),
}
"""Maps each limit to the field of `Spent` that the limit applies to and to the unit in which people see it."""


class Grant(Recorded):
    """The amounts that an approver adds to the limits of a budget."""

    max_llm_calls: Count = 0
    max_total_tokens: Count = 0
    max_tool_calls: Count = 0
    max_wall_s: Rate = 0.0
    max_cost: Rate = 0.0

    def __add__(self, other: "Grant") -> "Grant":
        return Grant(**{name: getattr(self, name) + getattr(other, name) for name in Grant.model_fields})


NOTHING = Grant()


class Used(Recorded):
    """The usage of a failed invocation, recorded in the details of its error."""

    spent: Spent = NOTHING_SPENT
    granted: Grant = NOTHING


def parse_usage(details: Sequence[Any]) -> Used | None:
    """Return the usage from the error details of a failed called agent, or None if the details do not contain it."""
    try:
        return Used.model_validate(details[0])
    except (IndexError, ValidationError):
        return None


def parse_grant(response: Mapping[str, object] | None, budget: Budget, exhausted: Iterable[str]) -> Grant:
    """Return the grant in an approval's response.

    If the response is None or empty, add its original amount to each exhausted limit again.

    Raises:
        ValueError: The response is not a valid grant, or the grant would be zero.
    """
    amounts: JsonObject = dict(response) if response else {limit: budget.limits()[limit] for limit in exhausted}
    if unknown := sorted(amounts.keys() - Grant.model_fields.keys()):
        raise ValueError(f"{', '.join(map(repr, unknown))}: no such limit; there are {', '.join(Grant.model_fields)}")
    try:
        grant = Grant.model_validate(amounts)
    except ValidationError as error:
        raise ValueError(describe_faults(error)) from None
    if grant == NOTHING:
        raise ValueError("nothing would be granted; reject instead, and the agent wraps up")
    return grant
