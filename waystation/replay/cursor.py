"""A cursor in a recording, which can move by event or by log entry, in both directions, and into called agents."""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from waystation.core.log import CallLost, CallReturned, ChildReturned
from waystation.history import ActivityAttempts, collect_attempts
from waystation.presentation import terminal, words
from waystation.replay.changes import Changes, is_same_json
from waystation.replay.displayable import Displayable
from waystation.replay.recording import Moment, Recording
from waystation.replay.recording_views import BAD, BOLD, DIM, format_event, format_state, grid

AROUND = 2
"""Number of events to show before and after the current one."""
MAX_STATE = 30
"""Maximum number of state keys to show. Changed keys come first."""


@dataclass(frozen=True)
class CursorPosition:
    """A position where a cursor can stop, either after an event or after a log entry that created no event."""

    moment: Moment
    before: Moment | None
    """The moment at the previous position, or None at the beginning of the recording."""

    @property
    def is_event(self) -> bool:
        """Whether an event was created here. If not, this is the beginning, or a log entry that created no event."""
        return self.before is not None and self.moment.number > self.before.number

    @property
    def changes(self) -> Changes:
        """The state changes since the previous position."""
        return Changes.between(self.before.state if self.before else {}, self.moment.state)

    def is_wait(self) -> bool:
        """Return whether a call started or stopped waiting for a person here."""
        return self.before is not None and _waits(self.moment) != _waits(self.before)

    def is_tool_result(self) -> bool:
        """Return whether a tool or a called agent returned or was lost here.

        If one result created several events, only the first of them counts.
        """
        entry = self.moment.entry
        is_new = self.before is not None and self.moment.entries != self.before.entries
        return is_new and entry is not None and isinstance(entry.body, CallReturned | CallLost | ChildReturned)

    def is_change(self) -> bool:
        """Return whether the state changed here."""
        return self.before is not None and not is_same_json(self.moment.state, self.before.state)


def _waits(moment: Moment) -> set[tuple[str, float]]:
    return {(call.function_call_id, call.requested_at) for call in moment.pending}


class _Level:
    """A recording that the cursor has entered, and the cursor's position in it."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.index = recording, 0

    @cached_property
    def positions(self) -> Sequence[CursorPosition]:
        course = self.recording.course
        moments = [Moment(self.recording, course[0].events, 0)]
        for entries in range(1, len(course)):
            before, after = course[entries - 1].events, course[entries].events
            numbers = range(before + 1, after + 1) if after > before else (after,)
            moments += [Moment(self.recording, number, entries) for number in numbers]
        return [CursorPosition(moment, before) for moment, before in zip(moments, [None, *moments], strict=False)]

    @cached_property
    def attempts(self) -> Mapping[str, ActivityAttempts]:
        return {activity.activity: activity for activity in collect_attempts(self.recording.histories)}


class Cursor(Displayable):
    """A movable position in a recording.

    Except for `go`, each move returns whether there was a position to move to. If there was none, the cursor stays
    where it is. Moves do not rebuild the log, so they are fast even in long histories.
    """

    def __init__(self, recording: Recording) -> None:
        """Create a cursor that is before the first event of a recording."""
        self._levels = [_Level(recording)]

    @property
    def recording(self) -> Recording:
        """The recording that the cursor is in, either the outermost one or that of a called agent."""
        return self._levels[-1].recording

    @property
    def position(self) -> CursorPosition:
        """The cursor's position in the current recording."""
        return self._levels[-1].positions[self._levels[-1].index]

    @property
    def moment(self) -> Moment:
        """The moment at the cursor."""
        return self.position.moment

    @property
    def changes(self) -> Changes:
        """The state changes since the previous position."""
        return self.position.changes

    @property
    def attempts(self) -> Mapping[str, ActivityAttempts]:
        """Durations and attempts of the activities in `recording`, by activity ID."""
        return self._levels[-1].attempts

    def next(self) -> bool:
        """Move to the next event."""
        return self._seek(lambda position: position.is_event)

    def previous(self) -> bool:
        """Move to the previous event, or to the beginning if there is none."""
        return self._seek(lambda position: position.is_event or position.before is None, back=True)

    def step(self) -> bool:
        """Move to the next position: an event, or a log entry without one, such as the start of a model call."""
        return self._seek(lambda _: True)

    def back(self) -> bool:
        """Move to the previous position: an event, a log entry that created no event, or the beginning."""
        return self._seek(lambda _: True, back=True)

    def go(self, number: int | None = None) -> None:
        """Move to event `number`, or to the end of the recording if `number` is None.

        Raises:
            NoSuchEvent: The recording has no such event.
        """
        moment, level = self.recording.moment(number), self._levels[-1]
        target = (moment.entries, moment.number)
        level.index = bisect_left(
            level.positions, target, key=lambda position: (position.moment.entries, position.moment.number)
        )

    def next_wait(self, *, back: bool = False) -> bool:
        """Move forward, or back, to the nearest position where a call starts or stops waiting for a person."""
        return self._seek(CursorPosition.is_wait, back=back)

    def next_tool(self, *, back: bool = False) -> bool:
        """Move forward, or back, to the nearest position where a tool or a called agent returns or is lost."""
        return self._seek(CursorPosition.is_tool_result, back=back)

    def next_change(self, *, back: bool = False) -> bool:
        """Move forward, or back, to the nearest position where the state changes."""
        return self._seek(CursorPosition.is_change, back=back)

    def search(self, text: str, *, back: bool = False) -> bool:
        """Move forward, or back, to the nearest position whose event contains the text.

        If no event was created at a position, search the description of the log entry instead. The search ignores case.
        """

        def has_text(position: CursorPosition) -> bool:
            if position.is_event and position.moment.event:
                content = format_event(position.moment.event).plain
            else:
                content = "\n".join(fact.text for fact in self._list_facts(position.moment))
            return text.lower() in content.lower()

        return self._seek(has_text, back=back)

    def calls(self) -> list[str]:
        """Return the IDs of the recorded agent calls that the current event makes or answers."""
        event = self.moment.event
        parts = [*event.function_calls(), *event.function_responses()] if event else []
        return [part["id"] for part in parts if part["id"] in self.recording.called]

    def into(self, call: str | None = None) -> bool:
        """Move to the beginning of a called agent's recording.

        By default, enter the agent of the first call in `calls()`.
        """
        known = self.calls() if call is None else [call]
        if not known or known[0] not in self.recording.called:
            return False
        self._levels.append(_Level(self.recording.called[known[0]]))
        return True

    def out(self) -> bool:
        """Return to the caller's recording, at the position where `into` left it."""
        if len(self._levels) == 1:
            return False
        self._levels.pop()
        return True

    def __rich__(self) -> RenderableType:
        """Return a view of the current event, its neighbors, the log entry, the state and the pending calls."""
        moment, changes = self.moment, self.changes
        parts: list[RenderableType] = [
            self._title(),
            Rule(style=DIM),
            _list_neighbors(self.recording, self.position),
            Text(""),
        ]
        if facts := list(self._list_facts(moment)):
            table = grid(Column(no_wrap=True, style=DIM, min_width=8), Column(overflow="fold"))
            for fact in facts:
                text = "\n".join(map(terminal.escape, fact.text.splitlines()))
                table.add_row(fact.label, Text(text, BAD if fact.is_failure else ""))
            parts += [table, Text("")]
        first = {key: moment.state[key] for key in (*changes.added, *changes.changed)}
        shown = dict(itertools.islice({**first, **moment.state}.items(), MAX_STATE))
        parts.append(format_state(shown, changes))
        if left_out := len(moment.state) - len(shown):
            parts.append(Text(f"  … and {left_out} more keys; `:state` shows all of them", DIM))
        for wait in moment.waits:
            parts += [Text(""), wait]
        if called := self.calls():
            parts += [Text(""), Text(f"press i to enter the agent that {', '.join(called)} called", DIM)]
        return Group(*parts)

    def _list_facts(self, moment: Moment) -> Iterator[words.Fact]:
        return words.facts_of(moment.entry, moment.recording.log, self.attempts)

    def _title(self) -> Text:
        moment, log, last = self.moment, self.recording.log, self.recording.course[-1].events
        name = f"{'event' if self.position.is_event else 'after event'} {moment.number} of {last}"
        if not moment.entries:
            name = f"before event {moment.number + 1} of {last}"
        before, ended = self.position.before, log.state.outcome.ended
        passed = f"  +{terminal.format_span(moment.time - before.time)}" if before and before.entries else ""
        over = f"  {ended}" if ended and moment.entries == len(log.entries) else ""
        id, when = (terminal.escape(self.recording.id), "cyan"), f"  {terminal.format_time(moment.time)}{passed}"
        return Text.assemble(id, "  ", (name, BOLD), when, (over, BOLD))

    def _seek(self, matches: Callable[[CursorPosition], bool], *, back: bool = False) -> bool:
        level = self._levels[-1]
        indexes = range(level.index - 1, -1, -1) if back else range(level.index + 1, len(level.positions))
        index = next((index for index in indexes if matches(level.positions[index])), None)
        if index is None:
            return False
        level.index = index
        return True


def _list_neighbors(recording: Recording, position: CursorPosition) -> Table:
    present = position.moment.number
    first, last = recording.events_before + 1, recording.course[-1].events
    table = grid(Column(justify="right", no_wrap=True), Column(overflow="fold"))
    for number in range(max(present - AROUND, first), min(present + AROUND, last) + 1):
        event = recording.moment(number).event
        assert event
        if number == present and position.is_event:
            table.add_row(Text(f"▶ {number}", BOLD), format_event(event))
            continue
        text = format_event(event).plain.split("\n")[0]
        table.add_row(Text(str(number), DIM), Text(text, DIM, no_wrap=True, overflow="ellipsis"))
        if number == present:
            table.add_row(Text("▶", BOLD), Text("no event here", "italic"))
    return table
