"""What an invocation uses, and how much it may use."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError, field_validator, model_validator

from waystation.core.payload import JsonObject, Recorded, faults

MAX_MODEL_CALLS = 500
"""ADK's default of `max_llm_calls`."""

Policy: TypeAlias = Literal["stop", "wrap_up", "ask"]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
OTHERS = "*"
"""In a table of prices: every model that no other row names."""


class Price(Recorded):
    """What a model costs, per million tokens, in whatever currency `max_cost` is in."""

    prompt: Rate
    output: Rate
    """Thoughts are output."""
    cached: Rate | None = None
    """For prompt tokens that the provider had cached; the price of others unless given."""

    def of(self, usage: "Usage") -> float:
        """Return what such tokens cost."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        reread = self.prompt if self.cached is None else self.cached
        written = usage.output_tokens + usage.thoughts_tokens
        return ((usage.prompt_tokens - cached) * self.prompt + cached * reread + written * self.output) / 1_000_000


class Budget(Recorded):
    """How much an invocation may use, with all agents that it calls and all attempts."""

    max_llm_calls: int = MAX_MODEL_CALLS
    """Attempts at model calls. With 0 or less no model is called at all."""
    max_total_tokens: Annotated[int, Field(gt=0)] | None = None
    max_tool_calls: Count | None = None
    max_wall_s: Amount | None = None
    """Seconds in which something was under way, rather than a person waited for."""
    max_cost: Amount | None = None
    """In the currency of `prices`."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """By the name of the model, the beginning of its name, or `*`; the longest that fits counts."""
    on_exhausted: Policy | None = None
    """None: `max_llm_calls` stops the invocation, as in ADK; the other limits have it wrap up."""

    @field_validator("prices")
    @classmethod
    def _names(cls, prices: dict[str, Price]) -> dict[str, Price]:
        if "" in prices:
            raise ValueError("a price has no model; `*` stands for all others")
        return prices

    @model_validator(mode="after")
    def _priced(self) -> "Budget":
        if self.max_cost is not None and not self.prices:
            raise ValueError("max_cost needs `prices`, such as {'*': {'prompt': 0.3, 'output': 2.5}}")
        return self

    def policy(self, limit: str) -> Policy:
        """Return what happens when a limit is reached."""
        return self.on_exhausted or ("stop" if limit == "max_llm_calls" else "wrap_up")

    def price(self, names: Collection[str]) -> Price | None:
        """Return the price of a model that goes by any of these names; the longest row that fits counts."""
        fitting = [row for row in self.prices if any(name.startswith(row) for name in names)]
        return self.prices.get(max(fitting, key=len) if fitting else OTHERS)

    def raised(self, by: "Grant") -> "Budget":
        """Return the budget with what a person has granted besides."""
        if by is NOTHING or by == NOTHING:
            return self
        return self.model_copy(update={limit: value + getattr(by, limit) for limit, value in self.limits().items()})

    def limits(self) -> dict[str, int | float]:
        """Return the limits that there are, by their names."""
        return {limit: value for limit in MEASURES if (value := getattr(self, limit)) is not None}


class Usage(Recorded):
    """Tokens, as the provider counts them."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    thoughts_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: "Usage | None") -> "Usage":
        if other is None or other is NO_USAGE:
            return self
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})

    @property
    def total(self) -> int:
        """All tokens, also where the provider gives no sum."""
        return self.total_tokens or self.prompt_tokens + self.output_tokens + self.thoughts_tokens


NO_USAGE = Usage()


class Spent(Recorded):
    """What an invocation has used, with all agents that it called and all attempts."""

    model_calls: int = 0
    """Attempts included."""
    total_tokens: int = 0
    tool_calls: int = 0
    """Each counts once, however often it was attempted; those of agents count as well as what they called."""
    working_s: float = 0.0
    """Seconds in which something was under way."""
    cost: float = 0.0
    unpriced: tuple[str, ...] = ()
    """Models that were called and have no price."""

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
"""By limit: the field of `Spent` that it bounds, and what that counts."""


class Grant(Recorded):
    """What a person allows beyond the budget: amounts to be added to its limits."""

    max_llm_calls: Count = 0
    max_total_tokens: Count = 0
    max_tool_calls: Count = 0
    max_wall_s: Rate = 0.0
    max_cost: Rate = 0.0

    def __add__(self, other: "Grant") -> "Grant":
        return Grant(**{name: getattr(self, name) + getattr(other, name) for name in Grant.model_fields})


NOTHING = Grant()


class Used(Recorded):
    """What an invocation used until it failed: the detail of the error with which it does."""

    spent: Spent = NOTHING_SPENT
    granted: Grant = NOTHING


def used_in(details: Sequence[Any]) -> Used | None:
    """Return what a called agent used, given the details of the error with which it failed; None when it is unknown."""
    try:
        return Used.model_validate(details[0])
    except (IndexError, ValidationError):
        return None


def granted(response: Mapping[str, object] | None, budget: Budget, exhausted: Iterable[str]) -> Grant:
    """Return what an approval grants: what it says, else the original amounts of the exhausted limits once more.

    Raises:
        ValueError: It says what is no grant; the text says what is wrong.
    """
    given: JsonObject = dict(response) if response else {limit: budget.limits()[limit] for limit in exhausted}
    if unknown := sorted(given.keys() - Grant.model_fields.keys()):
        raise ValueError(f"{', '.join(map(repr, unknown))}: no such limit; there are {', '.join(Grant.model_fields)}")
    try:
        grant = Grant.model_validate(given)
    except ValidationError as error:
        raise ValueError(faults(error)) from None
    if grant == NOTHING:
        raise ValueError("nothing would be granted; reject instead, and the agent wraps up")
    return grant
