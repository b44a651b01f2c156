"""Suggest rules from what people decided: which calls they always approved unchanged. Nothing is ever applied."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from waystation.core.payload import JsonObject
from waystation.replay.policy_trial import MAX_LINKS, OBJECTIONS, TriedCall

MIN_SUPPORT = 50
"""Number of decided calls that a suggestion needs."""
CONFIDENCE_Z = 1.96
"""Quantile of the normal distribution for intervals of 95 %."""
MIN_SHARE = 0.9
"""The least lower bound of the share of unchanged approvals for a suggestion."""
MAX_LIMITS = 20
"""Number of limits to try for each argument."""
KEPT_CALLS = 20_000
"""Number of decided calls of each tool to remember, the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A rule that would ask about fewer calls of a tool."""

    agent: str
    tool: str
    condition: str
    """The calls that would still ask, such as `over={'amount': 250}`, or `never`."""
    calls: int
    """The decided calls that would run without asking."""
    approved: int
    """Those of them that people approved without changes."""
    interval: tuple[float, float]
    """The 95 % interval of the share of unchanged approvals (Wilson)."""
    exceptions: tuple[str, ...]
    """The approval IDs of those that people rejected or edited, or nobody answered, up to `MAX_LINKS`."""


def interval_of(successes: int, count: int) -> tuple[float, float]:
    """Return Wilson's score interval of 95 % for a share."""
    z, share = CONFIDENCE_Z, successes / count
    center = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, center - half), min(1.0, center + half)


class SuggestionMaker:
    """Collects decided calls, and suggests rules for them."""

    def __init__(self) -> None:
        self._decided: dict[tuple[str, str], list[TriedCall]] = defaultdict(list)

    def add(self, call: TriedCall) -> None:
        """Remember a call that people decided by approving, rejecting or editing it, or by not answering it."""
        decided = self._decided[call.agent, call.tool]
        if call.decision in ("approve", *OBJECTIONS) and len(decided) < KEPT_CALLS:
            decided.append(call)

    def suggest(self) -> list[Suggestion]:
        """Return for each tool the suggestion that saves the most questions."""
        found = (max(self._list_candidates(calls), key=lambda each: each.calls, default=None) for calls in self._groups)
        return sorted(filter(None, found), key=lambda each: -each.calls)

    @property
    def _groups(self) -> Iterable[Sequence[TriedCall]]:
        return [calls for calls in self._decided.values() if len(calls) >= MIN_SUPPORT]

    def _list_candidates(self, calls: Sequence[TriedCall]) -> Iterator[Suggestion]:
        if suggestion := _make(calls, "never", lambda _: True):
            yield suggestion
        for name in sorted(set[str]().union(*(_numbers(call.args) for call in calls))):
            values = sorted({number for call in calls if (number := _numbers(call.args).get(name)) is not None})
            step = max(1, len(values) // MAX_LIMITS)
            for limit in values[::step]:

                def is_below(args: JsonObject, name: str = name, limit: float = limit) -> bool:
                    number = _numbers(args).get(name)
                    return number is not None and number <= limit

                if suggestion := _make(calls, f"over={{{name!r}: {limit:g}}}", is_below):
                    yield suggestion


def _make(calls: Sequence[TriedCall], condition: str, passes: Callable[[JsonObject], bool]) -> Suggestion | None:
    """Return the suggestion to run the calls that pass, or None if the evidence does not suffice."""
    passed = [call for call in calls if passes(call.args)]
    approved = sum(call.decision == "approve" for call in passed)
    if len(passed) < MIN_SUPPORT or interval_of(approved, len(passed))[0] < MIN_SHARE:
        return None
    return Suggestion(
        agent=calls[0].agent,
        tool=calls[0].tool,
        condition=condition,
        calls=len(passed),
        approved=approved,
        interval=interval_of(approved, len(passed)),
        exceptions=tuple(call.id for call in passed if call.decision != "approve")[:MAX_LINKS],
    )


def _numbers(args: JsonObject) -> dict[str, float]:
    return {name: float(value) for name, value in args.items() if type(value) in (int, float)}
