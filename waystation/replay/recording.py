"""One invocation as it was recorded, on a server or in a file, and what it held at each of its moments."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import (
    SCOPE_WORKFLOW,
    SESSION_WORKFLOW,
    Entry,
    Event,
    ForeignHistory,
    JsonObject,
    Log,
    NoSuchEvent,
    PendingCall,
    SessionState,
    StoreFailed,
    WaystationError,
)
from waystation.history import (
    SavedHistory,
    carried_log,
    check_readable,
    decode_histories,
    log_from_runs,
    log_of,
    read_history_file,
    type_of,
)
from waystation.replay.displayable import Displayable
from waystation.storage import Blobs, offloading, shortened

if TYPE_CHECKING:
    from waystation.client import Invocation


class Point(NamedTuple):
    """What a log held after one of its entries."""

    events: int
    """How many events there were."""
    state: JsonObject
    pending: tuple[PendingCall, ...]


def _point(log: Log) -> Point:
    # The state is replaced and never changed in place, so that keeping it costs nothing.
    return Point(log.state.event_count, log.state.session.values, tuple(log.state.pending()))


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
        fold = SessionState(before.state)
        first = self.recording.events_before
        for event in self.recording.events[before.events - first : self.number - first]:
            fold.apply(event.actions)
        return fold.values

    @property
    def pending(self) -> Sequence[PendingCall]:
        """What waited for a person."""
        return self.recording.course[self.entries].pending

    @property
    def time(self) -> float:
        """When it was, in seconds since 1970 by the workflow's clock."""
        entry = self.entry or next(iter(self.recording.log.entries), None)
        return entry.time if entry else 0.0

    @property
    def before(self) -> "Moment | None":
        """The moment of the event before; None at the first."""
        return self.recording.moment(self.number - 1) if self.number > self.recording.events_before else None


@dataclass(frozen=True)
class Recording(Displayable):
    """What was recorded of an invocation, or of a session or a scope, which have no log of an agent.

    Moments are named by events, numbered from 1 as `waystation events` lists them; 0 is before the first.
    """

    source: str
    """The id, or the file."""
    histories: Sequence[WorkflowHistory] = field(repr=False)  # which no terminal and no failed test has room for
    """Of its runs, oldest first, with payloads that codec and store have opened."""
    log: Log = field(repr=False)
    called: Mapping[str, "Recording"] = field(default_factory=dict, repr=False)
    """The agents that it called, by the ids of the calls; those whose histories are not there are left out."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Digests of large values of which only short forms could be had, each with the reason."""

    @classmethod
    async def of(cls, invocation: "Invocation") -> "Recording":
        """Return what the server has, whether the invocation goes on or is over.

        Raises:
            ForeignHistory: It is not one of ours, or a newer version's.
            StoreFailed: A part that was archived cannot be had.
            RPCError: The server does not know it, or does not answer.
        """
        client = invocation.client
        converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
        return await _recording(invocation.id, await invocation.saved(), converter, client.blobs)

    @classmethod
    async def read(
        cls, path: Path | str, *, store: str | None = None, converter: DataConverter = DataConverter.default
    ) -> "Recording":
        """Return what a file holds, such as `waystation history`, the `temporal` CLI or the Web UI writes.

        Args:
            path: The file.
            store: Where the workers keep large payloads: a folder or the URL of an object store.
            converter: As the workers', for payloads that a codec has encoded.

        Raises:
            ForeignHistory: It holds something else, is truncated or damaged, or a newer version's.
            OSError: It cannot be read.
        """
        saved = await asyncio.to_thread(read_history_file, Path(path))
        blobs = Blobs(store)
        return await _recording(str(path), saved, offloading(blobs, short_forms=True, converter=converter), blobs)

    @property
    def id(self) -> str:
        """The workflow's id."""
        return self.histories[0].workflow_id

    @property
    def kind(self) -> str:
        """The workflow's type: `AgentInvocation`, `AgentSession` or `AgentScope`."""
        return type_of(self.histories[0])

    def below(self) -> Iterator["Recording"]:
        """Yield the agents that it called, and those that they called."""
        for each in self.called.values():
            yield each
            yield from each.below()

    @property
    def events(self) -> Sequence[Event]:
        """Those that the recording holds, the first of which has the number `events_before` + 1."""
        return self.log.state.events

    def at(self, number: int) -> Log:
        """Return the log as it was right after event `number`.

        Raises:
            NoSuchEvent: There is no such event, or it is before what the recording holds.
        """
        return self.moment(number).log

    def moment(self, number: int | None = None) -> Moment:
        """Return the moment right after event `number`; the last one if that is left out.

        Raises:
            NoSuchEvent: There is no such event, or it is before what the recording holds.
        """
        first, last = self.course[0].events, self.course[-1].events
        if number is None:
            return Moment(self, last, len(self.log.entries))
        if not first <= number <= last:
            raise NoSuchEvent(self.source, number, first, last)
        return Moment(self, number, bisect_left(self.course, number, key=lambda point: point.events))

    def moments(self) -> Iterator[Moment]:
        """Yield the moment after each event, in order."""
        for number in range(self.events_before + 1, self.course[-1].events + 1):
            yield self.moment(number)

    def after(self, entries: int) -> Log:
        """Return the log as it was after so many of the entries that the recording holds."""
        return carried_log(self.log, self.histories).extend(self.log.entries[:entries])

    @property
    def events_before(self) -> int:
        """How many events precede what the recording holds; none, unless earlier runs are lost."""
        return self.log.state.events_before

    @cached_property
    def course(self) -> Sequence[Point]:
        """What the log held before the first entry of the recording, and after each."""
        log = carried_log(self.log, self.histories)
        points = [_point(log)]
        for entry in self.log.entries:
            log.append(entry.ref, entry.time, entry.body)
            points.append(_point(log))
        return points


async def _recording(source: str, saved: SavedHistory, converter: DataConverter, blobs: Blobs) -> Recording:
    histories = await _opened(source, saved.histories, converter)
    check_readable(histories, repr(source))
    log = Log(histories[0].workflow_id)
    if type_of(histories[0]) not in (SESSION_WORKFLOW, SCOPE_WORKFLOW):
        try:
            log = await log_from_runs(histories, blobs.get)
        except StoreFailed:  # what is left of it is in the snapshot with which the first of the runs begins
            log = log_of(histories)
    called: dict[str, Recording] = {}
    for each in saved.called:
        id = each.histories[0].workflow_id
        called[id.rpartition("/")[2]] = await _recording(id, each, converter, blobs)
    return Recording(source, histories, log, called, dict(shortened(converter)))


async def _opened(
    source: str, histories: Sequence[WorkflowHistory], converter: DataConverter
) -> Sequence[WorkflowHistory]:
    try:
        return await decode_histories(histories, converter)
    except (WaystationError, OSError):
        raise
    except Exception as error:  # whatever a codec of others raises, such as for another key
        if converter.payload_codec is None:
            raise
        raise ForeignHistory(
            f"{source!r} has payloads that the codec at hand cannot open ({type(error).__name__}: {str(error)[:200]}). "
            "Use the codec, and the key, of the workers that recorded it."
        ) from error
