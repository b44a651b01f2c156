"""The table of results, with goals and whether they are met."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    samples: Sequence[float]
    """For a ratio, one for each pair of samples that were taken in turns."""
    exact: bool = False
    """Whether the value is a count, which is the same in each run and on each machine. One sample then suffices."""
    statistic: Callable[[Sequence[float]], float] = median
    unit: str = ""
    """Empty for a ratio."""
    goal: float | None = None
    """The largest acceptable value, or with `at_least` the smallest; None for context."""
    aim: float | None = None
    """A stricter goal."""
    at_least: bool = False
    floor: float | None = None
    engine: float | None = None
    unit_of_sides: str = ""
    cpu: Sequence[float] = ()
    """The ratios of the CPU time of client and workers, in the same pairs."""
    note: str = ""

    @property
    def value(self) -> float:
        """The statistic of the samples."""
        return self.statistic(self.samples)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the value."""
        return bootstrap(self.samples, self.statistic)

    @property
    def verdict(self) -> str:
        """`met`, `not met`, `undecided`, or `one sample`; empty without a goal.

        The goal is met if the whole interval is on its good side, and not met if the whole interval is on the other.
        One sample has no interval and no verdict, unless it is a count.
        """
        if self.goal is None:
            return ""
        if len(self.samples) == 1 and not self.exact:
            return "one sample"
        best, worst = sorted(self.interval, reverse=self.at_least)
        sign = -1 if self.at_least else 1
        if sign * worst <= sign * self.goal:
            return "met, aim too" if self.aim is not None and sign * worst <= sign * self.aim else "met"
        return "not met" if sign * best > sign * self.goal else "undecided"

    def to_json(self) -> dict[str, Any]:
        """Return the row with its value, interval and verdict."""
        fields = {**asdict(self), "statistic": self.statistic.__name__}
        return {**fields, "value": self.value, "interval": self.interval, "verdict": self.verdict}


def ratio(name: str, floor: Sequence[float], engine: Sequence[float], **fields: Any) -> Row:
    """Compare samples that were taken in turns: the median of the ratios of the pairs."""
    return Row(name=name, samples=ratios(floor, engine), floor=median(floor), engine=median(engine), **fields)


def ratios(floor: Sequence[float], engine: Sequence[float]) -> list[float]:
    """Return the ratio of each pair."""
    return [ours / theirs for theirs, ours in zip(floor, engine, strict=True)]


def p95(samples: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return quantiles(samples, n=20, method="inclusive")[-1] if len(samples) > 1 else samples[0]


def bootstrap(samples: Sequence[float], statistic: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """Return the 95% interval of a statistic: its quantiles over samples drawn again, always the same way."""
    draw = random.Random(0)
    values = sorted(statistic(draw.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    return values[RESAMPLES // 40], values[-1 - RESAMPLES // 40]


def markdown(rows: Iterable[Row]) -> str:
    """Format the rows as a Markdown table."""
    lines = [
        "| measured | floor | engine | result | 95% interval | CPU | must | aim | verdict | |",
        "|---|--:|--:|--:|:-:|:-:|--:|--:|---|---|",
    ]
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        cells = [
            row.name,
            *("" if side is None else format_value(side, row.unit_of_sides) for side in (row.floor, row.engine)),
            format_value(row.value, row.unit),
            _format_interval(row.interval) if len(row.samples) > 1 else "",
            f"{median(row.cpu):.2f} ({_format_interval(bootstrap(row.cpu, median))})" if row.cpu else "",
            *("" if limit is None else f"{sign} {limit:g} {row.unit}".strip() for limit in (row.goal, row.aim)),
            row.verdict,
            row.note,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_value(value: float, unit: str) -> str:
    """Format a number with its unit."""
    digits = 0 if value == int(value) or value >= 1_000 else 2 if value < 10 else 1
    return f"{value:,.{digits}f} {unit}".strip()


def _format_interval(interval: tuple[float, float]) -> str:
    return " to ".join(format_value(x, "") for x in interval)
