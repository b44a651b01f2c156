"""A cursor in a recording: it moves by event or by entry, in both directions, into called agents and out again."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import RenderableType

from waystation.core import CallLost, CallReturned, ChildReturned
from waystation.history import ActivityAttempts, collect_attempts
from waystation.presentation import recording_views, words
from waystation.replay.comparison import Changes, is_same_json
from waystation.replay.displayable import Displayable
from waystation.replay.recording import Moment, Recording


@dataclass(frozen=True)
class Position:
    """A moment at which a cursor can stop: after each event, and after each entry that made no event."""

    moment: Moment
    before: Moment | None
    """The position before; None at the beginning of the recording."""

    @property
    def is_event(self) -> bool:
        """Whether an event was made here; if not, the position is between two events."""
        return self.before is not None and self.moment.number > self.before.number

    @property
    def changes(self) -> Changes:
        """The changes of the state since the position before."""
        return Changes.between(self.before.state if self.before else {}, self.moment.state)

    def is_wait(self) -> bool:
        """Whether a call began to wait for a person here, or stopped waiting."""
        return self.before is not None and _waits(self.moment) != _waits(self.before)

    def is_tool_result(self) -> bool:
        """Whether a tool or a called agent returned or was lost here. Further events of one result do not count."""
        entry = self.moment.entry
        is_new = self.before is not None and self.moment.entries != self.before.entries
        return is_new and entry is not None and isinstance(entry.body, CallReturned | CallLost | ChildReturned)

    def is_change(self) -> bool:
        """Whether the state changed here."""
        return self.before is not None and not is_same_json(self.moment.state, self.before.state)


def _waits(moment: Moment) -> set[tuple[str, float]]:
    return {(call.function_call_id, call.requested_at) for call in moment.pending}


class _Level:
    """A recording that the cursor is in, and where."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.index = recording, 0

    @cached_property
    def positions(self) -> Sequence[Position]:
        course = self.recording.course
        moments = [Moment(self.recording, course[0].events, 0)]
        for entries in range(1, len(course)):
            before, after = course[entries - 1].events, course[entries].events
            numbers = range(before + 1, after + 1) if after > before else (after,)
            moments += [Moment(self.recording, number, entries) for number in numbers]
        return [Position(moment, before) for moment, before in zip(moments, [None, *moments], strict=False)]

    @cached_property
    def attempts(self) -> Mapping[str, ActivityAttempts]:
        return {activity.activity: activity for activity in collect_attempts(self.recording.histories)}


class Cursor(Displayable):
    """A position in a recording. Each move returns whether there was somewhere to go; if not, the cursor stays.

    No move rebuilds a log: any moment of a long history is reached at once.
    """

    def __init__(self, recording: Recording) -> None:
        """Start before the first event."""
        self._levels = [_Level(recording)]

    @property
    def recording(self) -> Recording:
        """The recording that the cursor is in: the outermost one, or that of a called agent."""
        return self._levels[-1].recording

    @property
    def position(self) -> Position:
        """Where the cursor is."""
        return self._levels[-1].positions[self._levels[-1].index]

    @property
    def moment(self) -> Moment:
        """The moment at the cursor."""
        return self.position.moment

    @property
    def changes(self) -> Changes:
        """The changes of the state since the position before."""
        return self.position.changes

    @property
    def attempts(self) -> Mapping[str, ActivityAttempts]:
        """Durations and attempts of the activities of `recording`, by activity id."""
        return self._levels[-1].attempts

    def next(self) -> bool:
        """Move to the next event."""
        return self._seek(lambda position: position.is_event)

    def previous(self) -> bool:
        """Move to the event before, or to the beginning."""
        return self._seek(lambda position: position.is_event or position.before is None, back=True)

    def step(self) -> bool:
        """Move to the next entry, even if it made no event: a timer, a notification, the start of a model call."""
        return self._seek(lambda _: True)

    def back(self) -> bool:
        """Move to the entry before."""
        return self._seek(lambda _: True, back=True)

    def go(self, number: int | None = None) -> None:
        """Move to event `number`; without it, to the end of the recording.

        Raises:
            NoSuchEvent: The recording has no such event.
        """
        moment, level = self.recording.moment(number), self._levels[-1]
        target = (moment.entries, moment.number)
        level.index = bisect_left(
            level.positions, target, key=lambda position: (position.moment.entries, position.moment.number)
        )

    def next_wait(self, *, back: bool = False) -> bool:
        """Move to where a call begins to wait for a person, or stops waiting."""
        return self._seek(Position.is_wait, back=back)

    def next_tool(self, *, back: bool = False) -> bool:
        """Move to where a tool or a called agent returns or is lost."""
        return self._seek(Position.is_tool_result, back=back)

    def next_change(self, *, back: bool = False) -> bool:
        """Move to where the state changes."""
        return self._seek(Position.is_change, back=back)

    def search(self, text: str, *, back: bool = False) -> bool:
        """Move to where a text occurs in an event, or in an entry without one. Case does not matter."""

        def has_text(position: Position) -> bool:
            if position.is_event and position.moment.event:
                content = recording_views.format_event(position.moment.event).plain
            else:
                content = "\n".join(fact.text for fact in words.facts_of(position.moment, self.attempts))
            return text.lower() in content.lower()

        return self._seek(has_text, back=back)

    def calls(self) -> list[str]:
        """Return the ids of the present event's calls to agents that have a recording."""
        event = self.moment.event
        parts = [*event.function_calls(), *event.function_responses()] if event else []
        return [part["id"] for part in parts if part["id"] in self.recording.called]

    def into(self, call: str | None = None) -> bool:
        """Move to the beginning of a called agent's recording; by default the first that the present event calls."""
        known = self.calls() if call is None else [call]
        if not known or known[0] not in self.recording.called:
            return False
        self._levels.append(_Level(self.recording.called[known[0]]))
        return True

    def out(self) -> bool:
        """Move back to where `into` left the caller's recording."""
        if len(self._levels) == 1:
            return False
        self._levels.pop()
        return True

    def __rich__(self) -> RenderableType:
        """Return the event, its changes, and the pending calls."""
        return recording_views.stop(self)

    def _seek(self, matches: Callable[[Position], bool], *, back: bool = False) -> bool:
        level = self._levels[-1]
        indexes = range(level.index - 1, -1, -1) if back else range(level.index + 1, len(level.positions))
        index = next((index for index in indexes if matches(level.positions[index])), None)
        if index is None:
            return False
        level.index = index
        return True
