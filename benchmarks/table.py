"""The table of results, with goals and whether they were met."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    value: float
    unit: str = ""
    """Empty for the ratio of engine to floor."""
    goal: float | None = None
    """The largest acceptable value; None for context, or if `fact` decides."""
    aim: float | None = None
    """A stricter goal."""
    fact: bool | None = None
    """For a goal that is not a number: whether it is met. `note` describes it."""
    floor: str = ""
    engine: str = ""
    spread: tuple[float, float] | None = None
    """Quartiles of the value over the turns."""
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the goal was met, at the displayed precision; None without a goal."""
        return self.fact if self.goal is None else _rounded(self.value, self.unit) <= self.goal

    @property
    def verdict(self) -> str:
        """The text of the verdict column."""
        if self.met is None:
            return ""
        if not self.met:
            return "MISSED"
        return "met, aim too" if self.aim is not None and _rounded(self.value, self.unit) <= self.aim else "met"

    def to_json(self) -> dict[str, Any]:
        """Return the row with its verdict."""
        return {**asdict(self), "met": self.met}


def ratio(name: str, floor: Sequence[float], engine: Sequence[float], *, unit: str = "ms", **fields: Any) -> Row:
    """Compare samples that were taken in turns."""
    ratios = [ours / theirs for theirs, ours in zip(floor, engine, strict=True)]
    quarters = quantiles(ratios, n=4) if len(ratios) > 1 else None
    return Row(
        name=name,
        value=median(engine) / median(floor),
        floor=format_value(median(floor), unit),
        engine=format_value(median(engine), unit),
        spread=(quarters[0], quarters[2]) if quarters else None,
        samples={"floor": [round(x, 4) for x in floor], "engine": [round(x, 4) for x in engine]},
        **fields,
    )


def format_value(value: float, unit: str) -> str:
    """Format a number with its unit."""
    digits = _digits(value, unit)
    return f"{value:,.{digits}f} {unit}".strip()


def markdown(rows: Iterable[Row]) -> str:
    """Format the rows as a Markdown table."""
    lines = [
        "| measured | floor | engine | result | quartiles | goal | verdict | |",
        "|---|--:|--:|--:|:-:|--:|---|---|",
    ]
    for row in rows:
        spread = " to ".join(format_value(x, "") for x in row.spread) if row.spread else ""
        goal = "" if row.goal is None else f"≤ {row.goal:g} {row.unit}".strip()
        goal += "" if row.aim is None else f" (aim {row.aim:g})"
        cells = [
            row.name,
            row.floor,
            row.engine,
            format_value(row.value, row.unit),
            spread,
            goal,
            row.verdict,
            row.note,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _digits(value: float, unit: str) -> int:
    if unit in ("", "s"):
        return 2
    return 0 if value >= 100 or value == int(value) else 1


def _rounded(value: float, unit: str) -> float:
    return round(value, _digits(value, unit))
