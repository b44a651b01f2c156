"""Summaries of older events: which summaries a prompt shows, whether a new one is due, and which events it covers.

The log keeps every event; summaries only replace events in prompts. The rules follow `apps/compaction.py` in ADK 2.13,
with one exception: an open call does not end the range that is summarized. Its events stay visible inside the range, so
that an approval that takes a month does not prevent the prompt from shrinking. The user's newest message stays visible
too, and so does everything that the agent's model has not received yet.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from waystation.core import ids
from waystation.core.contract import Compaction, Covered, Event, Trigger, is_visible_on
from waystation.core.conversation.conversation import CallKey, Conversation
from waystation.core.log import AgentRun, Log
from waystation.core.payload import JsonObject, encode

CHARS_PER_TOKEN = 4
"""Number of characters that count as one token in estimates, as in ADK."""

IsOpen: TypeAlias = Callable[[Event, str], bool]
"""Returns whether the call with the given ID in an event can still get another response."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary as seen on one branch, with its range as indices into the list of events."""

    event: Event
    first: int
    last: int
    kept: frozenset[str]
    begun: int
    """Index of the first event of the invocation that created the summary. Events of other invocations after this index
    are not covered even if they are in the range, because the summarizer had not seen them."""

    @property
    def content(self) -> JsonObject:
        """The content that replaces the summarized events."""
        compaction = self.event.actions.compaction
        return compaction.compacted_content if compaction else {}

    def covers(self, index: int, event: Event) -> bool:
        """Return whether the summary replaces the given event."""
        known = index < self.begun or event.invocation_id == self.event.invocation_id
        within = self.first <= index <= self.last and event.id not in self.kept
        return within and known and is_visible_on(self.event.branch, event.branch)


def effective_summaries(events: Sequence[Event], branch: str | None) -> list[Summary]:
    """Return the summaries that apply on a branch, ordered by range.

    A summary is left out if its range lies within the range of another one that is visible on its branch. If the two
    ranges are the same, the newer summary is kept. Summaries whose ranges merely overlap, as with ADK's sliding
    windows, are all kept.
    """
    with_summary = [event for event in events if event.covered and is_visible_on(branch, event.branch)]
    if not with_summary:
        return []
    index = {event.id: number for number, event in enumerate(events) if event.id}
    begun = {event.invocation_id: number for number, event in reversed(list(enumerate(events)))}
    # The events of an older range may no longer exist. The range then comes before all remaining events.
    candidates = [
        Summary(event, index.get(c.first, 0), index.get(c.last, -1), frozenset(c.kept), begun[event.invocation_id])
        for event in with_summary
        if (c := event.covered)
    ]
    effective = [
        s
        for n, s in enumerate(candidates)
        if not any(_stands_for(o, s, m > n) for m, o in enumerate(candidates) if m != n)
    ]
    return sorted(effective, key=lambda summary: (summary.first, summary.last))


def _stands_for(other: Summary, summary: Summary, newer: bool) -> bool:
    if not is_visible_on(other.event.branch, summary.event.branch):
        return False
    same = (other.first, other.last) == (summary.first, summary.last)
    return newer if same else other.first <= summary.first and summary.last <= other.last


def hidden(events: Sequence[Event], summaries: Sequence[Summary]) -> set[int]:
    """Return the indices of the events that the summaries replace."""
    return {
        number
        for summary in summaries
        for number in range(summary.first, summary.last + 1)
        if summary.covers(number, events[number])
    }


@dataclass(frozen=True, slots=True)
class SummaryRange:
    """The input of a summarizer and the events that its summary will replace."""

    trigger: Trigger
    events: tuple[Event, ...]
    """The summarizer's input: the earlier summaries that the new one replaces, each in the form of an event, and then
    the events of the range, oldest first. Events that stay visible are included, because the summarizer needs to know
    the task."""
    covered: Covered
    start_timestamp: float
    end_timestamp: float

    def compaction(self, **fields: object) -> Compaction:
        """Return the record of an attempt. Pass `failure` if it failed, otherwise `content`, `usage` and `model`."""
        return Compaction.model_validate(
            {
                "trigger": self.trigger,
                "covered": self.covered,
                "start_timestamp": self.start_timestamp,
                "end_timestamp": self.end_timestamp,
                **fields,
            }
        )


@dataclass(frozen=True, slots=True)
class ConversationView:
    """The conversation as one agent run sees it."""

    events: Sequence[Event]
    agent: str
    branch: str | None
    invocation_id: str
    """The current invocation. Every other invocation has ended or is waiting."""
    is_open: IsOpen

    @classmethod
    def of(cls, conversation: Conversation | Log, work: AgentRun) -> "ConversationView":
        """Return the conversation as seen by the agent run `work`."""
        conversation = Conversation(conversation) if isinstance(conversation, Log) else conversation
        events = conversation.events

        @functools.cache
        def responses() -> dict[tuple[str, str | None], Any]:  # rarely needed
            return {
                (event.invocation_id, response.get("id")): response.get("response")
                for event in events
                for response in event.function_responses()
            }

        def is_open(event: Event, function_call_id: str) -> bool:
            key = event.invocation_id, function_call_id
            call = conversation.call(key)
            # A call may be closed before its last response becomes an event.
            return call is not None and not (call.closed and responses().get(key) == call.response)

        return cls(events, work.agent, work.branch, conversation.log.invocation_id, is_open)

    def visible(self, index: int) -> bool:
        """Return whether the agent can see an event, even if a summary replaces it. Return False for a summary."""
        event = self.events[index]
        return event.covered is None and is_visible_on(self.branch, event.branch)

    def tokens(self, contents: Callable[[], Sequence[JsonObject]]) -> int:
        """Return the approximate size of the next prompt in tokens.

        This is the size of the agent's latest prompt, as counted by the provider, plus an estimate for the reply and
        newer events. If there is no such count since the last summary, estimate the whole prompt, which `contents`
        returns.
        """
        for index in range(len(self.events) - 1, -1, -1):
            event = self.events[index]
            if event.covered and is_visible_on(self.branch, event.branch):
                break
            counted = (event.usage_metadata or {}).get("prompt_tokens")
            if counted and event.author == self.agent and event.branch == self.branch:
                since = (self.events[i].content for i in range(index, len(self.events)) if self.visible(i))
                return int(counted) + estimate(since)
        return estimate(contents())

    def failed_lately(self, replies: int) -> bool:
        """Return whether at least one of the agent's newest `replies` replies reports a failed summary."""
        newest = islice(filter(self._is_own, reversed(self.events)), replies)
        return any("compaction_failed" in (event.custom_metadata or {}) for event in newest)

    def over_threshold(self, retention: int) -> SummaryRange | None:
        """Return the range to summarize, or None if there is nothing to summarize.

        At least the newest `retention` events remain visible.
        """
        summaries = effective_summaries(self.events, self.branch)
        hidden_events = hidden(self.events, summaries)
        candidates = [i for i in range(len(self.events)) if i not in hidden_events and self.visible(i)]
        if len(candidates) <= retention:
            return None
        unseen = self._first_unseen()
        older = {i for i in candidates[: len(candidates) - retention] if i < unseen}
        covered = older - self._still_visible(candidates, older)
        if not covered:
            return None
        latest = max(summaries, key=lambda summary: summary.last, default=None)
        first = min(candidates[0], latest.first) if latest else candidates[0]
        last = max(*covered, *(s.last for s in summaries if s.first >= first), first)
        replaced = [s for s in summaries if first <= s.first and is_visible_on(self.branch, s.event.branch)]
        return self._range("token_threshold", replaced, covered, first, last)

    def due_window(self, interval: int, overlap: int) -> SummaryRange | None:
        """Return the range to summarize, or None if no summary is due.

        A summary is due once at least `interval` earlier invocations have events after the last summarized event. The
        range starts up to `overlap` invocations before the first of them. No summary is due if the events that it would
        newly replace are not larger than the latest summary.
        """
        if not self._has_new(interval):
            return None
        done: dict[str, list[int]] = {}
        for i, event in enumerate(self.events):
            if self.visible(i) and event.invocation_id != self.invocation_id:
                done.setdefault(event.invocation_id, []).append(i)
        summaries = effective_summaries(self.events, self.branch)
        last_covered = max((summary.last for summary in summaries), default=-1)
        names = list(done)
        new = [name for name in names if done[name][-1] > last_covered]
        first = done[names[max(0, names.index(new[0]) - overlap)]][0]
        last = done[new[-1]][-1]
        everything = [i for i in range(len(self.events)) if self.visible(i)]
        older = {i for i in everything if first <= i <= last and self.events[i].invocation_id != self.invocation_id}
        covered = older - self._still_visible(everything, older)
        removable = _size(self.events[i].content for i in covered - hidden(self.events, summaries))
        if not covered or removable <= (_size([summaries[-1].content]) if summaries else 0):
            return None
        return self._range("sliding_window", (), covered, first, max(covered))

    def _has_new(self, interval: int) -> bool:
        """Return whether at least `interval` earlier invocations have events after the last summarized event.

        Only these events are read.
        """
        ends, names = set[str](), set[str]()
        for event in reversed(self.events):
            if event.id in ends:
                break
            if not is_visible_on(self.branch, event.branch):
                continue
            if event.covered:
                ends.add(event.covered.last)
            elif event.invocation_id != self.invocation_id:
                names.add(event.invocation_id)
                if len(names) >= interval:
                    return True
        return False

    def _range(
        self, trigger: Trigger, replaced: Sequence[Summary], covered: set[int], first: int, last: int
    ) -> SummaryRange:
        seeds = [
            self.events[summary.first].model_copy(
                update={"author": "model", "content": summary.content, "long_running_tool_ids": None}
            )
            for summary in replaced
        ]
        before = sum(summary.event.covered.count for summary in replaced if summary.event.covered)
        hidden_events = hidden(self.events, effective_summaries(self.events, self.branch))
        visible = [i for i in range(first, last + 1) if i not in covered and i not in hidden_events and self.visible(i)]
        return SummaryRange(
            trigger=trigger,
            events=(*seeds, *(self.events[i] for i in sorted(covered.union(visible)))),
            covered=Covered(
                first=self.events[first].id,
                last=self.events[last].id,
                kept=tuple(self.events[i].id for i in visible),
                count=before + len(covered),
            ),
            start_timestamp=self.events[first].timestamp,
            end_timestamp=self.events[last].timestamp,
        )

    def _is_own(self, event: Event) -> bool:
        """Return whether the event is the agent's own on this branch and does not contain function responses."""
        return event.author == self.agent and event.branch == self.branch and not event.function_responses()

    def _first_unseen(self) -> int:
        """Return the index of the agent's latest reply in this invocation, or the number of events if there is none.

        The model has not seen any events after its latest reply.
        """
        for index in range(len(self.events) - 1, -1, -1):
            event = self.events[index]
            if event.content and event.invocation_id == self.invocation_id and self._is_own(event):
                return index
        return len(self.events)

    def _still_visible(self, visible: Sequence[int], older: set[int]) -> set[int]:
        """Return the indices in `older` of the events that stay visible.

        These are the user's newest message and open calls. Calls and responses that belong to any visible event also
        stay.
        """
        groups: dict[CallKey, list[int]] = {}
        belongs: dict[int, list[CallKey]] = {}
        answered: set[CallKey] = set()
        staying = {i for i in visible if i not in older}
        for i in visible:
            event = self.events[i]
            calls, responses = _ids(event.function_calls()), _ids(event.function_responses())
            answered.update((event.invocation_id, id) for id in responses)
            # A confirmation or credential request belongs to the call that it is about.
            for key in {(event.invocation_id, ids.requesting_call(id)): None for id in (*calls, *responses)}:
                groups.setdefault(key, []).append(i)
                belongs.setdefault(i, []).append(key)
        newest = next((i for i in reversed(visible) if _is_message(self.events[i])), None)
        if newest is not None:
            staying.add(newest)
        for i in older:
            event = self.events[i]
            calls = [id for id in _ids(event.function_calls()) if ids.requesting_call(id) == id]
            if any((event.invocation_id, id) not in answered or self.is_open(event, id) for id in calls):
                staying.add(i)
        following = list(staying)
        while following:
            for key in belongs.pop(following.pop(), ()):
                following.extend(i for i in groups[key] if i not in staying)
                staying.update(groups[key])
        return staying & older


def _ids(calls: Sequence[JsonObject]) -> list[str]:
    return [call.get("id") or "" for call in calls]


def _is_message(event: Event) -> bool:
    return event.author == "user" and bool(event.content) and not event.function_responses()


def estimate(contents: Iterable[JsonObject | None]) -> int:
    """Estimate the number of tokens in the contents, as `_estimate_prompt_token_count` does in ADK 2.13."""
    return sum(_chars(content) for content in contents if content) // CHARS_PER_TOKEN


def _chars(content: JsonObject) -> int:
    chars = 0
    for part in content.get("parts") or ():
        chars += len(part.get("text") or "")
        for kind, values in (("functionCall", "args"), ("functionResponse", "response")):
            if call := part.get(kind):
                chars += len(call.get("name") or "") + (len(encode(call[values])) if call.get(values) else 0)
    return chars


def _size(contents: Iterable[JsonObject | None]) -> int:
    return sum(len(encode(content)) for content in contents if content)
