"""What an invocation held at one of its moments."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from waystation.core.answer import PendingCall
from waystation.core.entry import Entry
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.state import StateFold
from waystation.replay.displayable import Displayable

if TYPE_CHECKING:
    from waystation.replay.recording import Recording


class Point(NamedTuple):
    """What a log held after one of its entries."""

    events: int
    """How many events there were."""
    state: JsonObject
    pending: tuple[PendingCall, ...]


def course(log: Log, entries: Sequence[Entry]) -> list[Point]:
    """Return what a log holds now, and after each of further entries, which are appended to it."""
    points = [_point(log)]
    for entry in entries:
        log.append(entry.ref, entry.time, entry.body)
        points.append(_point(log))
    return points


def _point(log: Log) -> Point:
    # The state is replaced and never changed in place, so that keeping it costs nothing.
    return Point(log.event_count, log.state, tuple(log.pending()))


@dataclass(frozen=True)
class Moment(Displayable):
    """The moment right after an event, or after an entry that made none."""

    recording: "Recording"
    number: int
    """Of the latest event; 0 is before the first."""
    entries: int
    """How many of the entries that the recording holds had been applied."""

    @property
    def event(self) -> Event | None:
        """The latest event; None before the first."""
        index = self.number - self.recording.events_before - 1
        return self.recording.events[index] if index >= 0 else None

    @property
    def events(self) -> Sequence[Event]:
        """Those that had happened, as far as the recording holds them."""
        return self.recording.events[: self.number - self.recording.events_before]

    @property
    def entry(self) -> Entry | None:
        """What was applied last: a result, an answer, a deadline; None before the first."""
        return self.recording.log.entries[self.entries - 1] if self.entries else None

    @cached_property
    def log(self) -> Log:
        """The log as it was, built anew. With an event come those that the same entry made."""
        return self.recording.after(self.entries)

    @cached_property
    def state(self) -> JsonObject:
        """The state, `temp:` keys included. Not to be modified."""
        points = self.recording.course
        point = points[self.entries]
        if not self.entries or point.events == self.number:
            return point.state
        before = points[self.entries - 1]  # further events came of the same entry
        fold = StateFold(before.state)
        first = self.recording.events_before
        for event in self.recording.events[before.events - first : self.number - first]:
            fold.apply(event.actions)
        return fold.value

    @property
    def pending(self) -> Sequence[PendingCall]:
        """What waited for a person."""
        return self.recording.course[self.entries].pending

    @property
    def time(self) -> float:
        """When it was, in seconds since 1970 by the workflow's clock."""
        if self.entry:
            return self.entry.time
        return self.recording.log.entries[0].time if self.recording.log.entries else 0.0

    @property
    def before(self) -> "Moment | None":
        """The moment of the event before; None at the first."""
        return self.recording.moment(self.number - 1) if self.number > self.recording.events_before else None
