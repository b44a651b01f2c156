"""What was measured, what the goal is, and whether it was met."""

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
    """Empty for a ratio of engine to floor."""
    goal: float | None = None
    """The most that the value may be; None for what is only context, or when `fact` decides."""
    aim: float | None = None
    """What would be better still than the goal."""
    fact: bool | None = None
    """For a goal that is no number: whether it holds. `note` says what."""
    floor: str = ""
    engine: str = ""
    spread: tuple[float, float] | None = None
    """Quartiles of the value over the turns."""
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the goal was met, at the precision that is shown; None without a goal."""
        return self.fact if self.goal is None else _rounded(self.value, self.unit) <= self.goal

    @property
    def verdict(self) -> str:
        """What the table says about the goal."""
        if self.met is None:
            return ""
        if not self.met:
            return "MISSED"
        return "met, aim too" if self.aim is not None and _rounded(self.value, self.unit) <= self.aim else "met"

    def to_json(self) -> dict[str, Any]:
        """Return the row with its verdict."""
        return {**asdict(self), "met": self.met}


def ratio(name: str, floor: Sequence[float], engine: Sequence[float], *, unit: str = "ms", **fields: Any) -> Row:
    """Return a row that compares samples which were taken in turns."""
    each = [mine / its for its, mine in zip(floor, engine, strict=True)]
    quarters = quantiles(each, n=4) if len(each) > 1 else None
    return Row(
        name=name,
        value=median(engine) / median(floor),
        floor=shown(median(floor), unit),
        engine=shown(median(engine), unit),
        spread=(quarters[0], quarters[2]) if quarters else None,
        samples={"floor": [round(x, 4) for x in floor], "engine": [round(x, 4) for x in engine]},
        **fields,
    )


def shown(value: float, unit: str) -> str:
    """Return a figure as people read it."""
    digits = _digits(value, unit)
    return f"{value:,.{digits}f} {unit}".strip()


def markdown(rows: Iterable[Row]) -> str:
    """Return the table."""
    lines = [
        "| measured | floor | engine | result | quartiles | goal | verdict | |",
        "|---|--:|--:|--:|:-:|--:|---|---|",
    ]
    for row in rows:
        spread = " to ".join(shown(x, "") for x in row.spread) if row.spread else ""
        goal = "" if row.goal is None else f"≤ {row.goal:g} {row.unit}".strip()
        goal += "" if row.aim is None else f" (aim {row.aim:g})"
        cells = [row.name, row.floor, row.engine, shown(row.value, row.unit), spread, goal, row.verdict, row.note]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _digits(value: float, unit: str) -> int:
    if unit in ("", "s"):
        return 2
    return 0 if value >= 100 or value == int(value) else 1


def _rounded(value: float, unit: str) -> float:
    return round(value, _digits(value, unit))
