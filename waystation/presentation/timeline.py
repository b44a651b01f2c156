"""What an invocation did, drawn to scale: model calls, tools, waits for people, events and changes of state.

A wait of three weeks beside steps of two seconds would leave nothing else to see. So a stretch in which nothing changes
is cut when it is much longer than all shorter ones together; it is drawn as a break, with its real length beside it.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from waystation.core import ids
from waystation.core.event import Event
from waystation.core.log import Log

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
        span.end, span.open = (last, False) if log.ended else (max(now, span.begin), True)
    for span in found:
        span.attempts = max(1, attempts.get(span.activity, 1))
    return found


def _present(log: Log) -> dict[tuple[Kind, str], str]:
    """Return what goes on after an entry, each with its name."""
    present: dict[tuple[Kind, str], str] = {}
    if log.ended:
        return present
    for number, work in log.models_at_work.items():
        present["model", ids.model_replied(number)] = f"{work.shape.name}: model call {number}"
    for call in log.performing():
        kind: Kind = "agent" if call.call.kind == "agent" else "tool"
        present[kind, ids.performance(call.id, call.run)] = f"{call.agent}: {call.name}"
    for call in log.waiting():
        present["wait", call.id] = f"{call.agent}: {call.name} waits"
    return present


def marks(events: Sequence[Event]) -> tuple[list[float], list[float]]:
    """Return when events came, and when they changed the state."""
    times = [event.timestamp for event in events]
    changes = [event.timestamp for event in events if event.actions.state_delta or event.actions.removed_keys]
    return times, changes


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
