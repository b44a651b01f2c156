"""What an invocation did, drawn to scale: model calls, tools, waits for people, events and changes of state.

A wait of three weeks beside steps of two seconds would leave nothing else to see. So a stretch in which nothing changes
is cut when it is much longer than all shorter ones together; it is drawn as a break, with its real length beside it.

Templates draw the picture, for the pages of `waystation web` and for reports, without a script.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from waystation.core import CallRef, Event, JsonObject, Log, ModelReplyRef
from waystation.presentation import text_safety

Kind = Literal["model", "tool", "agent", "wait"]
LONGER = 3.0
"""How many times as long as all shorter stretches together one has to be to be cut."""
BREAK, BREAKS = 9.0, 45.0
"""Percent of the width that one break takes, and all of them at most."""
MAX_ROWS = 300
"""Of more, the last are drawn."""
MAX_OPEN_ROWS = 40
"""More rows are folded away, and lanes are drawn in their place."""
MIN_WIDTH = 0.4
"""Percent; what took no time at all is still to be seen."""


@dataclass(slots=True)
class Span:
    """Something that took a while."""

    kind: Kind
    name: str
    activity: str
    """Id of the activity, or of the call that waited."""
    begin: float
    end: float
    open: bool = False
    """Whether it goes on."""
    attempts: int = 1
    depth: int = 0
    """How many agents call one another above it."""
    href: str = ""
    """Where the page has the details."""

    @property
    def seconds(self) -> float:
        """How long it took, or has taken."""
        return self.end - self.begin

    def to_json(self) -> JsonObject:
        """Return it as reports have it."""
        about = {"kind": self.kind, "name": self.name, "id": self.activity, "began": self.begin, "ended": self.end}
        return {**about, "seconds": self.seconds, "open": self.open, "attempts": self.attempts}

    @property
    def length(self) -> str:
        """The same in words."""
        return f"{text_safety.duration(self.seconds)}{' so far' if self.open else ''}"

    @property
    def retries(self) -> str:
        """How often it was attempted, to be added to its name; empty for once."""
        return f", {self.attempts} attempts" if self.attempts > 1 else ""


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
        longest = 25 / self.percent_of_second
        power = 10.0 ** math.floor(math.log10(longest))
        seconds = next((digit * power for digit in (5, 2) if digit * power <= longest), power)
        return seconds, seconds * self.percent_of_second


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


def picture(spans: Sequence[Span], events: Iterable[Event], key: str = "") -> dict[str, Any] | None:
    """Return what a page draws: each span on a row, and of many also all of a kind in one lane; None without spans.

    `key` makes the ids of several pictures on a page distinct.
    """
    if not spans:
        return None
    events, whole = list(events), spans[-MAX_ROWS:]
    return {
        "whole": _figure(whole, events, f"-{key}all"),
        "lanes": _lanes(spans, events, f"-{key}lanes") if len(spans) > MAX_OPEN_ROWS else None,
        "left_out": len(spans) - len(whole),
        "count": len(spans),
    }


def _figure(spans: Sequence[Span], events: Iterable[Event], key: str, *, digits: int = 2) -> dict[str, Any]:
    """Return where everything is, in percent of the width."""
    first = min(span.begin for span in spans)
    events = [event for event in events if event.timestamp >= first]
    times = [event.timestamp for event in events]
    changes = [event.timestamp for event in events if event.actions.state_delta or event.actions.removed_keys]
    scale = Scale([*(span.begin for span in spans), *(span.end for span in spans), *times])
    seconds, width = scale.ruler
    return {
        "key": key,
        "count": len(spans),
        "lanes": [],
        "height": HEAD + ROW * len(spans) + 8,
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
        "events": [_percent(x) for x in sorted({round(scale.at(time), digits) for time in times})],
        "changes": [_percent(x) for x in sorted({round(scale.at(time), digits) for time in changes})],
        "bars": [_bar(span, scale, HEAD + ROW * index, digits) for index, span in enumerate(spans)],
        "rows": spans,
    }


def _lanes(spans: Sequence[Span], events: Iterable[Event], key: str) -> dict[str, Any]:
    figure = _figure(spans, events, key, digits=1)
    kinds = [kind for kind in _LANES if any(span.kind == kind for span in spans)]
    bars = [{**bar, "y": HEAD + ROW * kinds.index(bar["kind"]), "text": ""} for bar in figure["bars"]]
    return {
        **figure,
        "height": HEAD + ROW * len(kinds) + 8,
        "lanes": [
            {"y": HEAD + ROW * index, "text": f"{_LANES[kind]}: {sum(span.kind == kind for span in spans):,}"}
            for index, kind in enumerate(kinds)
        ],
        # Of those that lie where another one of their kind begins and ends only one is drawn.
        "bars": list({(bar["y"], bar["x"], bar["width"], bar["retried"]): bar for bar in bars}.values()),
        "rows": [],
    }


def _bar(span: Span, scale: Scale, y: int, digits: int) -> dict[str, Any]:
    x, end = scale.at(span.begin), scale.at(span.end)
    width = max(MIN_WIDTH, end - x)
    return {
        "kind": span.kind,
        "x": _percent(round(min(x, 100 - width), digits)),
        "width": _percent(round(width, digits)),
        "y": y,
        "indent": INDENT * span.depth,
        "text": f"{span.length}, {text_safety.line(span.name, 60)}{span.retries}",
        "retried": span.attempts > 1,
    }


def _percent(value: float) -> str:
    return f"{value:.2f}%"
