"""A walk through a recording: forwards and backwards, event by event or entry by entry, into called agents and out."""

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property

from rich.console import RenderableType

from waystation.core import CallLost, CallReturned, ChildReturned
from waystation.history import Attempts, attempts_of
from waystation.presentation import recording_views
from waystation.replay.comparison import Changes, alike
from waystation.replay.displayable import Displayable
from waystation.replay.recording import Moment, Recording


class Walk(Displayable):
    """Stands at one moment of a recording. Moves say whether there was somewhere to go; else it stays where it is.

    Nothing is built anew on the way: any moment of a long history is reached at once.
    """

    def __init__(self, recording: Recording) -> None:
        """Begin before the first event."""
        self.recording = recording
        self._places = _places(recording)
        self._at = 0
        self._callers: list[tuple[Recording, list[tuple[int, int]], int]] = []

    @property
    def moment(self) -> Moment:
        """Where it stands."""
        return self._moment(self._at)

    @property
    def made_event(self) -> bool:
        """Whether an event was made there; if not, it stands between two."""
        return self._is_event(self._at)

    @property
    def came_from(self) -> Moment | None:
        """The place just before; None at the beginning."""
        return self._moment(self._at - 1) if self._at else None

    @property
    def changes(self) -> Changes:
        """What became of the state since the place just before."""
        before = self.came_from
        return Changes.between(before.state if before else {}, self.moment.state)

    @property
    def depth(self) -> int:
        """How many calls of agents it has gone into."""
        return len(self._callers)

    def next(self) -> bool:
        """Go to the next event."""
        return self._seek(self._is_event)

    def previous(self) -> bool:
        """Go to the event before, or to the beginning."""
        return self._seek(lambda place: place == 0 or self._is_event(place), back=True)

    def step(self) -> bool:
        """Go to the next thing that was applied, also where it made no event: a timer, a notice, a model called."""
        return self._seek(lambda _: True)

    def back(self) -> bool:
        """Go to the one before."""
        return self._seek(lambda _: True, back=True)

    def go(self, number: int) -> None:
        """Go to an event by its number.

        Raises:
            NoSuchEvent: There is none.
        """
        moment = self.recording.moment(number)
        self._at = bisect_left(self._places, (moment.entries, moment.number))

    def first(self) -> None:
        """Go to the beginning."""
        self._at = 0

    def last(self) -> None:
        """Go to where the recording ends."""
        self._at = len(self._places) - 1

    def next_wait(self, *, back: bool = False) -> bool:
        """Go to where something begins to wait for a person, or no longer does."""
        return self._seek(lambda place: place > 0 and self._waiting(place) != self._waiting(place - 1), back=back)

    def next_tool(self, *, back: bool = False) -> bool:
        """Go to where a tool, or a called agent, reports or is lost."""

        def reports(place: int) -> bool:
            entry = self._moment(place).entry
            new = place > 0 and self._places[place][0] != self._places[place - 1][0]
            return new and entry is not None and isinstance(entry.body, CallReturned | CallLost | ChildReturned)

        return self._seek(reports, back=back)

    def next_change(self, *, back: bool = False) -> bool:
        """Go to where the state changes."""

        def changes(place: int) -> bool:
            return place > 0 and not alike(self._moment(place).state, self._moment(place - 1).state)

        return self._seek(changes, back=back)

    def search(self, text: str, *, back: bool = False) -> bool:
        """Go to where a text, in upper or lower case, stands in an event or in what was applied."""
        wanted = text.lower()

        def has(place: int) -> bool:
            moment = self._moment(place)
            said = recording_views.said(moment.event).plain if self._is_event(place) and moment.event else ""
            told = "" if said else "\n".join(fact.text for fact in recording_views.happened(moment, self.efforts))
            return wanted in said.lower() or wanted in told.lower()

        return self._seek(has, back=back)

    def calls(self) -> list[str]:
        """Return the calls of agents in the present event whose recordings are there."""
        event = self.moment.event
        named = [part["id"] for part in (*event.function_calls(), *event.function_responses())] if event else []
        return [call for call in named if call in self.recording.called]

    def into(self, call: str | None = None) -> bool:
        """Go to the beginning of the agent that a call of the present event began, the first one if none is named."""
        known = self.calls() if call is None else [call]
        if not known or known[0] not in self.recording.called:
            return False
        self._callers.append((self.recording, self._places, self._at))
        self._enter(self.recording.called[known[0]])
        return True

    def out(self) -> bool:
        """Go back to where the caller was left."""
        if not self._callers:
            return False
        recording, places, at = self._callers.pop()
        self._enter(recording)
        self._places, self._at = places, at
        return True

    @cached_property
    def efforts(self) -> dict[str, Attempts]:
        """Durations and attempts of the recording that it stands in."""
        return {each.activity: each for each in attempts_of(self.recording.histories)}

    def __rich__(self) -> RenderableType:
        """Return the event, what it did, and what waited."""
        return recording_views.stop(self)

    def _enter(self, recording: Recording) -> None:
        self.recording, self._places, self._at = recording, _places(recording), 0
        self.__dict__.pop("efforts", None)

    def _moment(self, place: int) -> Moment:
        entries, number = self._places[place]
        return Moment(self.recording, number, entries)

    def _is_event(self, place: int) -> bool:
        return place > 0 and self._places[place][1] > self._places[place - 1][1]

    def _waiting(self, place: int) -> set[tuple[str, float]]:
        return {(call.function_call_id, call.requested_at) for call in self._moment(place).pending}

    def _seek(self, wanted: Callable[[int], bool], *, back: bool = False) -> bool:
        """Go to the nearest place that is wanted."""
        places = range(self._at - 1, -1, -1) if back else range(self._at + 1, len(self._places))
        for place in places:
            if wanted(place):
                self._at = place
                return True
        return False


def _places(recording: Recording) -> list[tuple[int, int]]:
    """Return how many entries and events there were at each place: one for each event, or for an entry without."""
    course = recording.course
    places = [(0, course[0].events)]
    for entries in range(1, len(course)):
        before, after = course[entries - 1].events, course[entries].events
        numbers = range(before + 1, after + 1) if after > before else (after,)
        places += [(entries, number) for number in numbers]
    return places
