"""A timeline as a picture: where its bars are, and what is written beside them.

Templates draw it, for the pages of `waystation web` and for reports, without a script.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from waystation.presentation import text_safety
from waystation.presentation.timeline import MIN_WIDTH, Kind, Scale, Span

ROW, HEAD = 38, 46
"""Heights in pixels, of a row and of what stands above the first."""
_LANES: dict[Kind, str] = {
    "model": "model calls",
    "tool": "tools",
    "agent": "called agents",
    "wait": "waits for people",
}

INDENT = 14
"""Pixels by which the text of a called agent's row is moved for each agent above it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One span of a picture."""

    span: Span
    depth: int = 0
    """How many agents call one another above it."""
    href: str = ""
    """What is told of it in full."""


def picture(
    rows: Sequence[Row], events: Iterable[float], changes: Iterable[float], key: str = "", *, digits: int = 2
) -> dict[str, Any]:
    """Return where everything is; `key` tells several pictures of a page apart."""
    spans = [row.span for row in rows]
    first = min(span.begin for span in spans)
    events = [at for at in events if at >= first]
    changes = [at for at in changes if at >= first]
    scale = Scale([*(span.begin for span in spans), *(span.end for span in spans), *events])
    return {
        "key": key,
        "count": len(rows),
        "lanes": [],
        "height": HEAD + ROW * len(rows) + 8,
        **_axis(scale, events, changes, digits),
        "bars": [_bar(row, scale, HEAD + ROW * index, digits) for index, row in enumerate(rows)],
        "rows": [_row(row) for row in rows],
    }


def lanes(rows: Sequence[Row], events: Iterable[float], changes: Iterable[float], key: str = "") -> dict[str, Any]:
    """Return the picture of very many rows: all of one kind in one lane."""
    made = picture(rows, events, changes, key, digits=1)
    kinds = [kind for kind in _LANES if any(row.span.kind == kind for row in rows)]
    for bar in made["bars"]:
        bar.update(y=HEAD + ROW * kinds.index(bar["kind"]), text="")
    made["bars"] = list(_merged(made["bars"]))
    made["lanes"] = [
        {"y": HEAD + ROW * index, "text": f"{_LANES[kind]}: {sum(row.span.kind == kind for row in rows):,}"}
        for index, kind in enumerate(kinds)
    ]
    return {**made, "height": HEAD + ROW * len(kinds) + 8, "rows": []}


def _axis(scale: Scale, events: Sequence[float], changes: Sequence[float], digits: int) -> dict[str, Any]:
    seconds, width = scale.ruler
    return {
        "ruler": {"width": _percent(width), "text": text_safety.duration(seconds)} if width else None,
        "breaks": [
            {
                "x": _percent(each.x),
                "width": _percent(each.width),
                "text": text_safety.duration(each.seconds),
                # Beside the right edge there is no room after it.
                "label": _percent(each.x if each.x < 60 else each.x + each.width),
                "anchor": "start" if each.x < 60 else "end",
            }
            for each in scale.breaks
        ],
        "events": [_percent(x) for x in sorted({round(scale.at(at), digits) for at in events})],
        "changes": [_percent(x) for x in sorted({round(scale.at(at), digits) for at in changes})],
    }


def _bar(row: Row, scale: Scale, y: int, digits: int) -> dict[str, Any]:
    span = row.span
    x, end = scale.at(span.begin), scale.at(span.end)
    width = max(MIN_WIDTH, end - x)
    return {
        "kind": span.kind,
        "x": _percent(round(min(x, 100 - width), digits)),
        "width": _percent(round(width, digits)),
        "y": y,
        "indent": INDENT * row.depth,
        "text": f"{_length(span)} {text_safety.line(span.name, 60)}{_tries(span)}",
        "retried": span.attempts > 1,
    }


def _merged(bars: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield bars without those that lie where another one of their kind begins and ends."""
    seen = set()
    for bar in bars:
        place = bar["y"], bar["x"], bar["width"], bar["retried"]
        if place not in seen:
            seen.add(place)
            yield bar


def _row(row: Row) -> dict[str, Any]:
    return {
        "kind": row.span.kind,
        "began": row.span.begin,
        "depth": row.depth,
        "href": row.href,
        "name": text_safety.line(row.span.name, 200) + _tries(row.span),
        "length": _length(row.span),
    }


def _length(span: Span) -> str:
    return f"{text_safety.duration(span.seconds)}{' so far,' if span.open else ','}"


def _tries(span: Span) -> str:
    return f", {span.attempts} attempts" if span.attempts > 1 else ""


def _percent(value: float) -> str:
    return f"{value:.2f}%"
