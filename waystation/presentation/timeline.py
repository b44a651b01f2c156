"""What an invocation did, drawn to scale: model calls, tools, waits for people, events and changes of state.

A wait of three weeks beside steps of two seconds would leave nothing else to see. So a stretch in which nothing changes
is cut when it is much longer than all shorter ones together; it is drawn as a break, with its real length beside it.

Templates draw the picture, for the pages of `waystation web` and for reports, without a script.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from waystation.core import CallRef, Event, Log, ModelReplyRef
from waystation.presentation import text_safety

Kind = Literal["model", "tool", "agent", "wait"]
LONGER = 3.0
"""How many times as long as all shorter stretches together one has to be to be cut."""
BREAK, BREAKS = 9.0, 45.0
"""Percent of the width that one break takes, and all of them at most."""
MAX_ROWS = 300
"""Of more, the last are drawn."""
MIN_WIDTH = 0.4
"""Percent; what took no time at all is still to be seen."""


@dataclass(slots=True)
class Span:
    """Something that took a while."""

    kind: Kind
    name: str
    activity: str
    """Id of the activity that it was, or of the call that waited."""
    begin: float
    end: float
    open: bool = False
    """Whether it goes on."""
    attempts: int = 1

    @property
    def seconds(self) -> float:
        """How long it took, or has taken."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Break:
    """A stretch that is not drawn to scale."""

    x: float
    width: float
    seconds: float


class Scale:
    """Where a time is drawn, in percent of the width."""

    def __init__(self, times: Iterable[float]) -> None:
        marks = sorted(set(times))
        lengths = [after - before for before, after in itertools.pairwise(marks)]
        cut = _cut(lengths)
        each = min(BREAK, BREAKS / len(cut)) if cut else 0.0
        kept = sum(length for index, length in enumerate(lengths) if index not in cut)
        self.percent_of_second = (100 - each * len(cut)) / kept if kept else 0.0
        at = [0.0]
        self.breaks: list[Break] = []
        for index, length in enumerate(lengths):
            if index in cut:
                self.breaks.append(Break(at[-1], each, length))
            at.append(at[-1] + (each if index in cut else length * self.percent_of_second))
        self._at = dict(zip(marks, at, strict=False))

    def at(self, time: float) -> float:
        """Return where one of the given times is."""
        return self._at[time]

    @property
    def ruler(self) -> tuple[float, float]:
        """Return a round number of seconds, and its width; nothing when there is no scale."""
        if not self.percent_of_second:
            return 0.0, 0.0
        wanted = 25 / self.percent_of_second
        for power in range(9, -7, -1):
            for digit in (5, 2, 1):
                if (seconds := digit * 10.0**power) <= wanted:
                    return seconds, seconds * self.percent_of_second
        return 0.0, 0.0


def spans(log: Log, attempts: Mapping[str, int], now: float, start: Log | None = None) -> list[Span]:
    """Return what took a while, in the order in which it began.

    Args:
        log: The log.
        attempts: How often each activity was attempted, by its id.
        now: When whatever goes on is drawn to.
        start: The log before the first of the entries, when they are not all that there were. It grows.
    """
    found: list[Span] = []
    running: dict[tuple[Kind, str], Span] = {}
    grown = start or Log(log.invocation_id)
    last = now
    for entry in log.entries:
        grown.append(entry.ref, entry.time, entry.body)
        last = entry.time
        present = _present(grown)
        for key in [key for key in running if key not in present]:
            running.pop(key).end = entry.time
        for key, name in present.items():
            if key not in running:
                running[key] = Span(key[0], name, key[1], entry.time, entry.time)
                found.append(running[key])
    for span in running.values():
        span.end, span.open = (last, False) if log.state.outcome.ended else (max(now, span.begin), True)
    for span in found:
        span.attempts = max(1, attempts.get(span.activity, 1))
    return found


def _present(log: Log) -> dict[tuple[Kind, str], str]:
    """Return what goes on after an entry, each with its name."""
    present: dict[tuple[Kind, str], str] = {}
    if log.state.outcome.ended:
        return present
    for number, work in log.state.models_at_work.items():
        present["model", str(ModelReplyRef(number))] = f"{work.shape.name}: model call {number}"
    for call in log.state.performing():
        kind: Kind = "agent" if call.call.kind == "agent" else "tool"
        present[kind, str(CallRef(call.id, call.run))] = f"{call.agent}: {call.name}"
    for call in log.state.waiting():
        present["wait", call.id] = f"{call.agent}: {call.name} waits"
    return present


def _cut(lengths: Sequence[float]) -> set[int]:
    """Return which stretches are too long to be drawn beside the others."""
    cut: set[int] = set()
    shorter = 0.0
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if shorter and lengths[index] > LONGER * shorter:
            cut.add(index)
        else:
            shorter += lengths[index]
    return cut


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


def picture(rows: Sequence[Row], events: Iterable[Event], key: str = "", *, digits: int = 2) -> dict[str, Any]:
    """Return where everything is; `key` tells several pictures of a page apart."""
    spans = [row.span for row in rows]
    first = min(span.begin for span in spans)
    events = [event for event in events if event.timestamp >= first]
    changes = [event.timestamp for event in events if event.actions.state_delta or event.actions.removed_keys]
    times = [event.timestamp for event in events]
    scale = Scale([*(span.begin for span in spans), *(span.end for span in spans), *times])
    return {
        "key": key,
        "count": len(rows),
        "lanes": [],
        "height": HEAD + ROW * len(rows) + 8,
        **_axis(scale, times, changes, digits),
        "bars": [_bar(row, scale, HEAD + ROW * index, digits) for index, row in enumerate(rows)],
        "rows": [_row(row) for row in rows],
    }


def lanes(rows: Sequence[Row], events: Iterable[Event], key: str = "") -> dict[str, Any]:
    """Return the picture of very many rows: all of one kind in one lane."""
    made = picture(rows, events, key, digits=1)
    kinds = [kind for kind in _LANES if any(row.span.kind == kind for row in rows)]
    for bar in made["bars"]:
        bar.update(y=HEAD + ROW * kinds.index(bar["kind"]), text="")
    # Of those that lie where another one of their kind begins and ends only one is drawn.
    places = {(bar["y"], bar["x"], bar["width"], bar["retried"]): bar for bar in made["bars"]}
    made["bars"] = list(places.values())
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
