"""A recorded invocation, loaded from a server or a file, and its state at each moment."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core.approval import PendingCall
from waystation.core.contract import SESSION_WORKFLOW, Event
from waystation.core.errors import ForeignHistory, NoSuchEvent, StoreFailed, WaystationError
from waystation.core.log import Entry, Log, SessionState
from waystation.core.payload import JsonObject
from waystation.core.scope_state import SCOPE_WORKFLOW
from waystation.history import (
    SavedHistory,
    build_log,
    check_readable,
    decode_histories,
    fetch_log,
    get_workflow_type,
    read_history_file,
    restore_carried_log,
)
from waystation.presentation import terminal
from waystation.replay.changes import Changes
from waystation.replay.displayable import Displayable
from waystation.replay.recording_views import (
    BOLD,
    DIM,
    MAX_EVENTS,
    format_event,
    format_pending_call,
    format_state,
    list_events,
)
from waystation.storage import Blobs, list_shortened, offloading

if TYPE_CHECKING:
    from waystation.client import Invocation


class Point(NamedTuple):
    """The state of a log before its first entry or after one of its entries."""

    events: int
    """Number of events up to this point."""
    state: JsonObject
    pending: tuple[PendingCall, ...]


def _point(log: Log) -> Point:
    # No copy is needed, because a change replaces the state instead of modifying it.
    return Point(log.state.event_count, log.state.session.values, tuple(log.state.pending()))


@dataclass(frozen=True)
class Moment(Displayable):
    """The moment right after an event or a log entry without an event, or before the first event."""

    recording: "Recording"
    number: int
    """Number of the latest event, or 0 before the first event."""
    entries: int
    """Number of log entries applied so far, counted from the first entry of the recording."""

    @property
    def event(self) -> Event | None:
        """The latest event, or None before the recording's first event."""
        index = self.number - self.recording.events_before - 1
        return self.recording.events[index] if index >= 0 else None

    @property
    def events(self) -> Sequence[Event]:
        """The events so far that the recording contains."""
        return self.recording.events[: self.number - self.recording.events_before]

    @property
    def entry(self) -> Entry | None:
        """The log entry that was applied last, or None before the first entry."""
        return self.recording.log.entries[self.entries - 1] if self.entries else None

    @cached_property
    def log(self) -> Log:
        """The log up to and including the last applied entry, rebuilt on first access.

        If that entry emitted several events, the log contains all of them, even those after this moment.
        """
        return self.recording.after(self.entries)

    @cached_property
    def state(self) -> JsonObject:
        """The state, including `temp:` keys. Do not modify it."""
        points = self.recording.course
        point = points[self.entries]
        if not self.entries or point.events == self.number:
            return point.state
        before = points[self.entries - 1]  # The entry also produced events after this moment.
        fold = SessionState(before.state)
        first = self.recording.events_before
        for event in self.recording.events[before.events - first : self.number - first]:
            fold.apply(event.actions)
        return fold.values

    @property
    def pending(self) -> Sequence[PendingCall]:
        """The calls that were pending after the last applied log entry."""
        return self.recording.course[self.entries].pending

    @property
    def time(self) -> float:
        """The time of this moment according to the workflow's clock, in seconds since 1970, or 0 for an empty log."""
        entry = self.entry or next(iter(self.recording.log.entries), None)
        return entry.time if entry else 0.0

    @property
    def before(self) -> "Moment | None":
        """The moment after the previous event, or None at the first moment."""
        return self.recording.moment(self.number - 1) if self.number > self.recording.events_before else None

    @property
    def position(self) -> Text:
        """The position in the recording, such as `event 3 of 12`, with the time and the invocation ID."""
        last = self.recording.course[-1].events
        name = f"event {self.number} of {last}" if self.number else f"before event 1 of {last}"
        when = terminal.format_time(self.time) if self.time else ""
        return Text.assemble((name, BOLD), (f"  {when}  {terminal.escape(self.recording.id)}", DIM))

    @property
    def waits(self) -> list[Text]:
        """The descriptions of the pending calls, including how each was decided later."""
        return [format_pending_call(call, self.time, self.recording.log) for call in self.pending]

    def __rich__(self) -> RenderableType:
        state = format_state(self.state, Changes.between(self.before.state if self.before else {}, self.state))
        return Group(self.position, *([format_event(self.event)] if self.event else []), state, *self.waits)


@dataclass(frozen=True)
class Recording(Displayable):
    """The recorded runs of an invocation, or of a session or scope, which have no log.

    Moments are identified by event numbers, which start at 1 as in `waystation events`. 0 is before the first event.
    """

    source: str
    """The workflow ID, or the file that the recording was read from."""
    histories: Sequence[WorkflowHistory] = field(repr=False)  # too large to print
    """One history for each run, oldest first, with decoded payloads."""
    log: Log = field(repr=False)
    called: Mapping[str, "Recording"] = field(default_factory=dict, repr=False)
    """Recordings of the called agents whose histories are available, by function call ID."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Digests of the large values that are missing from the store, each with the reason."""

    @classmethod
    async def of(cls, invocation: "Invocation") -> "Recording":
        """Load the recording of an invocation from the server. The invocation may still be running.

        Raises:
            ForeignHistory: The workflow is not a Waystation workflow, or a newer version recorded it.
            StoreFailed: An archived part of the log is missing from the store.
            RPCError: The server does not know the invocation, or does not respond.
        """
        client = invocation.client
        converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
        return await _load(invocation.id, await invocation.saved(), converter, client.blobs)

    @classmethod
    async def read(
        cls, path: Path | str, *, store: str | None = None, converter: DataConverter = DataConverter.default
    ) -> "Recording":
        """Load a recording from a file written by `waystation history`, the `temporal` CLI or the Web UI.

        Args:
            path: The file.
            store: The store for large payloads as configured for the workers: a folder, or the URL of an object store.
            converter: The workers' data converter, required if a codec encoded the payloads.

        Raises:
            ForeignHistory: The file is damaged, is not a Waystation history, or was recorded by a newer version.
            OSError: The file cannot be read.
        """
        saved = await asyncio.to_thread(read_history_file, Path(path))
        blobs = Blobs(store)
        return await _load(str(path), saved, offloading(blobs, short_forms=True, converter=converter), blobs)

    @property
    def id(self) -> str:
        """The workflow ID of the invocation, session or scope."""
        return self.histories[0].workflow_id

    @property
    def kind(self) -> str:
        """The workflow type: `AgentInvocation`, `AgentSession` or `AgentScope`."""
        return get_workflow_type(self.histories[0])

    def below(self) -> Iterator["Recording"]:
        """Yield the recordings of all agents that the invocation called, directly or indirectly."""
        for agent in self.called.values():
            yield agent
            yield from agent.below()

    @property
    def events(self) -> Sequence[Event]:
        """The events in the recording. The number of the first event is `events_before` + 1."""
        return self.log.state.events

    def at(self, number: int) -> Log:
        """Return the log right after event `number`.

        Raises:
            NoSuchEvent: There is no such event, or it precedes the recording.
        """
        return self.moment(number).log

    def moment(self, number: int | None = None) -> Moment:
        """Return the moment right after event `number`. Defaults to the last moment.

        Raises:
            NoSuchEvent: There is no such event, or it precedes the recording.
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
        """Return the log after this number of entries, counted from the first entry of the recording."""
        return restore_carried_log(self.log, self.histories).extend(self.log.entries[:entries])

    @property
    def events_before(self) -> int:
        """Number of events that precede the recording. It is 0 unless earlier runs are missing."""
        return self.log.state.events_before

    @cached_property
    def course(self) -> Sequence[Point]:
        """The states of the log: before the first entry, and after each entry."""
        log = restore_carried_log(self.log, self.histories)
        points = [_point(log)]
        for entry in self.log.entries:
            log.append(entry.ref, entry.time, entry.body)
            points.append(_point(log))
        return points

    def __rich__(self) -> RenderableType:
        count, runs = len(self.events), len(self.histories)
        facts = [f"{count} event{'s' * (count != 1)}"]
        facts += [f"{runs} runs"] * (runs > 1) + [f"{len(self.called)} called agents"] * bool(self.called)
        title = Text.assemble((terminal.escape(self.id), BOLD), f"  {', '.join(facts)}")
        if count <= MAX_EVENTS:
            return Group(title, list_events(self.events, self.events_before))
        half = MAX_EVENTS // 2
        first = list_events(self.events[:half], self.events_before)
        last = list_events(self.events[-half:], self.moment().number - half)
        return Group(title, first, Text(f"… {count - 2 * half} events between", DIM), last)


async def _load(source: str, saved: SavedHistory, converter: DataConverter, blobs: Blobs) -> Recording:
    histories = await _decode(source, saved.histories, converter)
    check_readable(histories, repr(source))
    log = Log(histories[0].workflow_id)
    if get_workflow_type(histories[0]) not in (SESSION_WORKFLOW, SCOPE_WORKFLOW):
        try:
            log = await fetch_log(histories, blobs.get)
        except StoreFailed:  # the first run carries a snapshot of the rest
            log = build_log(histories)
    called: dict[str, Recording] = {}
    for agent in saved.called:
        id = agent.histories[0].workflow_id
        called[id.rpartition("/")[2]] = await _load(id, agent, converter, blobs)
    return Recording(source, histories, log, called, dict(list_shortened(converter)))


async def _decode(
    source: str, histories: Sequence[WorkflowHistory], converter: DataConverter
) -> Sequence[WorkflowHistory]:
    try:
        return await decode_histories(histories, converter)
    except (WaystationError, OSError):
        raise
    except Exception as error:  # third-party codecs raise any error, for example for a wrong key
        if converter.payload_codec is None:
            raise
        raise ForeignHistory(
            f"The configured codec cannot decode payloads of {source!r} ({type(error).__name__}: {str(error)[:200]}). "
            "Use the same codec and key as the workers that recorded them."
        ) from error
