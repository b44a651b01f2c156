"""The timeline of an invocation: model calls, tools, waits for people, events and state changes, drawn to scale.

Next to a three-week wait, two-second steps would be invisible. An interval without any change is therefore drawn as a
break, labeled with its length, if it is much longer than all shorter intervals together.

Templates draw the timeline on web pages and in reports, without JavaScript.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from waystation.core.contract import Event
from waystation.core.log import CallRef, Log, ModelReplyRef
from waystation.core.payload import JsonObject
from waystation.presentation import text_safety

Kind = Literal["model", "tool", "agent", "wait"]
LONGER = 3.0
"""An interval becomes a break if it is more than this many times as long as all shorter intervals together."""
BREAK, BREAKS = 9.0, 45.0
"""Maximum width of one break, and of all breaks together, as percentages of the drawing's width."""
MAX_ROWS = 300
"""Maximum number of spans to draw as rows. If there are more, only the last ones are drawn."""
MAX_OPEN_ROWS = 40
"""Maximum number of spans whose rows are visible at first. If there are more, the page shows a lane per kind of span
and collapses the rows.
"""
MIN_WIDTH = 0.4
"""Minimum width of a span, in percent of the drawing's width, so that a span without duration is visible."""


@dataclass(slots=True)
class TimelineSpan:
    """A model call, tool call, called agent or wait, with its start and end times."""

    kind: Kind
    name: str
    activity: str
    """Reference to the model, tool or agent call, as in activity IDs. For a wait, the ID of the pending call."""
    begin: float
    end: float
    open: bool = False
    """Whether the span is still open at the end of the timeline."""
    attempts: int = 1
    depth: int = 0
    """The number of agents above the one that the span belongs to. 0 for the outermost invocation."""
    event: int = 0
    """The number of the event with which the span ended or, if it is open, of the latest event at its start. 0 if there
    is none.
    """
    href: str = ""
    """The link to the span's details on the page, or an empty string if there are none."""

    @property
    def seconds(self) -> float:
        """The duration of the span in seconds. For an open span, the duration so far."""
        return self.end - self.begin

    def to_json(self) -> JsonObject:
        """Return the span as an object for the JSON report."""
        return {
            "kind": self.kind,
            "name": self.name,
            "id": self.activity,
            "began": self.begin,
            "ended": self.end,
            "seconds": self.seconds,
            "open": self.open,
            "attempts": self.attempts,
        }

    @property
    def length(self) -> str:
        """The duration of the span in words, such as `2 hours so far`."""
        return f"{text_safety.format_duration(self.seconds)}{' so far' if self.open else ''}"

    @property
    def retries(self) -> str:
        """A suffix for the span's name with the number of attempts, or an empty string for a single attempt."""
        return f", {self.attempts} attempts" if self.attempts > 1 else ""


@dataclass(frozen=True, slots=True)
class Break:
    """An interval that is not drawn to scale."""

    x: float
    width: float
    seconds: float


class Scale:
    """Maps times to horizontal positions, in percent of the width."""

    def __init__(self, times: Iterable[float]) -> None:
        marks = sorted(set(times))
        lengths = [after - before for before, after in itertools.pairwise(marks)]
        cut = _find_breaks(lengths)
        break_width = min(BREAK, BREAKS / len(cut)) if cut else 0.0
        drawn = sum(length for index, length in enumerate(lengths) if index not in cut)
        self.percent_of_second = (100 - break_width * len(cut)) / drawn if drawn else 0.0
        at = [0.0]
        self.breaks: list[Break] = []
        for index, length in enumerate(lengths):
            if index in cut:
                self.breaks.append(Break(at[-1], break_width, length))
            at.append(at[-1] + (break_width if index in cut else length * self.percent_of_second))
        self._at = dict(zip(marks, at, strict=False))

    def at(self, time: float) -> float:
        """Return the position of a time, which must be one of the times passed to the constructor."""
        return self._at[time]

    @property
    def ruler(self) -> tuple[float, float]:
        """The ruler's length: a round number of seconds, and the width of that interval in percent, at most 25.

        Both are 0 if there is only one time.
        """
        if not self.percent_of_second:
            return 0.0, 0.0
        longest = 25 / self.percent_of_second
        power = 10.0 ** math.floor(math.log10(longest))
        seconds = next((digit * power for digit in (5, 2) if digit * power <= longest), power)
        return seconds, seconds * self.percent_of_second


def build_spans(log: Log, attempts: Mapping[str, int], now: float, start: Log | None = None) -> list[TimelineSpan]:
    """Return the spans of a log, ordered by start time.

    Args:
        log: The log.
        attempts: Number of attempts by activity ID.
        now: The end of open spans if the invocation is open. If it has ended, open spans end with the last entry.
        start: If earlier entries are missing, a log with the state before the first entry. This function appends to it.
    """
    rows: list[TimelineSpan] = []
    running: dict[tuple[Kind, str], TimelineSpan] = {}
    replayed = start or Log(log.invocation_id)
    last = now
    total = log.state.event_count
    for entry in log.entries:
        before = replayed.state.event_count
        replayed.append(entry.ref, entry.time, entry.body)
        last, known = entry.time, replayed.state.event_count
        open_now = _find_open(replayed)
        for key in [key for key in running if key not in open_now]:
            span = running.pop(key)
            span.end, span.event = entry.time, min(before + 1, total)
        for key, name in open_now.items():
            if key not in running:
                running[key] = TimelineSpan(key[0], name, key[1], entry.time, entry.time, event=known)
                rows.append(running[key])
    for span in running.values():
        span.end, span.open = (last, False) if log.state.outcome.ended else (max(now, span.begin), True)
    for span in rows:
        span.attempts = max(1, attempts.get(span.activity, 1))
    return rows


def _find_open(log: Log) -> dict[tuple[Kind, str], str]:
    """Return the names of all open model calls, tool calls, called agents and waits, by kind and ID."""
    names: dict[tuple[Kind, str], str] = {}
    if log.state.outcome.ended:
        return names
    for number, work in log.state.models_in_flight.items():
        names["model", str(ModelReplyRef(number))] = f"{work.shape.name}: model call {number}"
    for call in log.state.performing():
        kind: Kind = "agent" if call.call.kind == "agent" else "tool"
        names[kind, str(CallRef(call.id, call.run))] = f"{call.agent}: {call.name}"
    for call in log.state.waiting():
        names["wait", call.id] = f"{call.agent}: {call.name} waits"
    return names


def _find_breaks(lengths: Sequence[float]) -> set[int]:
    """Return the indexes of the intervals that are too long to draw to scale."""
    cut: set[int] = set()
    shorter = 0.0
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if shorter and lengths[index] > LONGER * shorter:
            cut.add(index)
        else:
            shorter += lengths[index]
    return cut


ROW, HEAD = 38, 46
"""The height of a row (`ROW`), and of the space above the first row (`HEAD`), in pixels."""
_LANES: dict[Kind, str] = {
    "model": "model calls",
    "tool": "tools",
    "agent": "called agents",
    "wait": "waits for people",
}
INDENT = 14
"""Number of pixels to indent a span's label per level of depth."""


def draw(spans: Sequence[TimelineSpan], events: Iterable[Event], key: str = "") -> dict[str, Any] | None:
    """Return the drawing of a timeline, or None if there are no spans.

    The drawing has a row for each of the last `MAX_ROWS` spans. If there are more than `MAX_OPEN_ROWS` spans, it also
    has a lane per kind of span. The `key` makes the drawing's HTML IDs unique on a page with several drawings.
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


def _figure(spans: Sequence[TimelineSpan], events: Iterable[Event], key: str, *, digits: int = 2) -> dict[str, Any]:
    """Return the data that templates draw, with positions in percent of the width and heights in pixels."""
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
        "ruler": {"width": _percent(width), "text": text_safety.format_duration(seconds)} if width else None,
        "breaks": [
            {
                "x": _percent(gap.x),
                "width": _percent(gap.width),
                "text": text_safety.format_duration(gap.seconds),
                # If the break is near the right edge, its label extends to the left.
                "label": _percent(gap.x if gap.x < 60 else gap.x + gap.width),
                "anchor": "start" if gap.x < 60 else "end",
            }
            for gap in scale.breaks
        ],
        "events": [_percent(x) for x in sorted({round(scale.at(time), digits) for time in times})],
        "changes": [_percent(x) for x in sorted({round(scale.at(time), digits) for time in changes})],
        "bars": [_bar(span, scale, HEAD + ROW * index, digits) for index, span in enumerate(spans)],
        "rows": spans,
    }


def _lanes(spans: Sequence[TimelineSpan], events: Iterable[Event], key: str) -> dict[str, Any]:
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
        # If several bars look the same in the same place, draw only one of them.
        "bars": list({(bar["y"], bar["x"], bar["width"], bar["retried"]): bar for bar in bars}.values()),
        "rows": [],
    }


def _bar(span: TimelineSpan, scale: Scale, y: int, digits: int) -> dict[str, Any]:
    x, end = scale.at(span.begin), scale.at(span.end)
    width = max(MIN_WIDTH, end - x)
    return {
        "kind": span.kind,
        "href": span.href,
        "label": f"{span.name}, {span.length}{span.retries}",
        "x": _percent(round(min(x, 100 - width), digits)),
        "width": _percent(round(width, digits)),
        "y": y,
        "indent": INDENT * span.depth,
        "text": f"{span.length}, {text_safety.format_line(span.name, 60)}{span.retries}",
        "retried": span.attempts > 1,
    }


def _percent(value: float) -> str:
    return f"{value:.2f}%"
