"""Summaries that stand for older events in prompts; the log keeps every event.

Names and JSON are ADK's. Which events a summary stands for is said by id and not by time, since many events share one
moment of the workflow's clock; see `Covered`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from waystation.core.budget import Usage
from waystation.core.conversation.event import Covered, Event, EventActions, EventCompaction, sees
from waystation.core.payload import JsonObject, Recorded

Trigger = Literal["token_threshold", "sliding_window"]


class Compaction(Recorded):
    """What became of an attempt to summarise older events before a model was asked."""

    trigger: Trigger
    covered: Covered
    start_timestamp: float
    end_timestamp: float
    content: JsonObject | None = None
    """The summary, a genai Content as JSON; None when there is none, and `failure` says why."""
    failure: str | None = None
    usage: Usage | None = None
    model: str | None = None

    def actions(self) -> EventActions | None:
        """Return the actions of the event that has the summary."""
        if self.content is None:
            return None
        return EventActions(
            compaction=EventCompaction(
                start_timestamp=self.start_timestamp, end_timestamp=self.end_timestamp, compacted_content=self.content
            )
        )

    def fields(self) -> dict[str, Any]:
        """Return what else the event says."""
        return {
            "covered": self.covered,
            "usage_metadata": self.usage.model_dump(exclude_defaults=True) if self.usage else None,
            "model_version": self.model,
        }

    def event(self, invocation_id: str, branch: str | None) -> Event | None:
        """Return the event as it will be, for the prompt that is made before it is recorded."""
        actions = self.actions()
        if actions is None:
            return None
        return Event(invocation_id=invocation_id, author="user", branch=branch, actions=actions, **self.fields())

    def failed(self) -> JsonObject | None:
        """Return what the model's event tells of a summary that could not be made."""
        return {"compaction_failed": {"trigger": self.trigger, "reason": self.failure}} if self.failure else None


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary as one branch sees it, with its range as indices into the events."""

    event: Event
    first: int
    last: int
    kept: frozenset[str]
    begun: int
    """Where the events of the invocation begin in which it was made. Of others it had seen no more than what came
    before; what they said while it went on may stand further behind, within the range."""

    @property
    def content(self) -> JsonObject:
        """What is shown in place of the events."""
        compaction = self.event.actions.compaction
        return compaction.compacted_content if compaction else {}

    def covers(self, index: int, event: Event) -> bool:
        """Whether it stands for an event."""
        if not self.first <= index <= self.last or event.id in self.kept:
            return False
        known = index < self.begun or event.invocation_id == self.event.invocation_id
        return known and sees(self.event.branch, event.branch)


def standing(events: Sequence[Event], branch: str | None) -> list[Summary]:
    """Return the summaries that a branch is shown, in the order of what they stand for.

    One whose range lies within another's is left out; of two with the same range, the newer one stands. Ranges that
    only overlap, as in ADK's sliding windows, all stay.
    """
    made = [event for event in events if event.covered and sees(branch, event.branch)]
    if not made:
        return []
    index = {event.id: number for number, event in enumerate(events) if event.id}
    begun: dict[str, int] = {}
    for number, event in enumerate(events):
        begun.setdefault(event.invocation_id, number)
    # A range whose events are no longer at hand lies before all that is.
    found = [
        Summary(event, index.get(c.first, 0), index.get(c.last, -1), frozenset(c.kept), begun[event.invocation_id])
        for event in made
        if (c := event.covered)
    ]
    kept = [s for n, s in enumerate(found) if not any(_stands_for(o, s, m > n) for m, o in enumerate(found) if m != n)]
    return sorted(kept, key=lambda summary: (summary.first, summary.last))


def _stands_for(other: Summary, summary: Summary, newer: bool) -> bool:
    if not sees(other.event.branch, summary.event.branch):
        return False
    same = (other.first, other.last) == (summary.first, summary.last)
    return newer if same else other.first <= summary.first and summary.last <= other.last


def hidden(events: Sequence[Event], summaries: Sequence[Summary]) -> set[int]:
    """Return the indices of the events that summaries stand for."""
    return {
        number
        for summary in summaries
        for number in range(summary.first, summary.last + 1)
        if summary.covers(number, events[number])
    }
