"""Prompts are extended as events arrive: each event is read once, and the result equals a prompt of all events."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core.drawn import SUMMARY, Story
from tests.unit.core.story import (
    answered,
    log_of,
    model_called,
    model_calls,
    model_replied,
    tool_returned,
    user_message,
)
from tests.unit.core.test_compaction import summary_event, turn
from tests.unit.core.test_conversation import invocation
from waystation.core.contract import Covered, Event
from waystation.core.conversation import Conversation, ConversationView, Transcript, prompt
from waystation.core.log import Log, MessageJoined
from waystation.core.payload import JsonObject


class CountedEvents(list[Event]):
    """A list that counts the events read from it."""

    reads = 0

    def __iter__(self) -> Iterator[Event]:
        for event in super().__iter__():
            self.reads += 1
            yield event

    def __getitem__(self, index: Any) -> Any:
        selected = super().__getitem__(index)
        self.reads += len(selected) if isinstance(index, slice) else 1
        return selected

    def __reversed__(self) -> Iterator[Event]:
        for event in super().__reversed__():
            self.reads += 1
            yield event


def add_step(log: Log, number: int) -> None:
    """Append one model call, which calls a tool, and the tool's result."""
    step = log_of(
        user_message("go"), model_calls("look", id=f"fc-{number}"), tool_returned(f"fc-{number}", {"n": number})
    )
    log.extend(step.entries[1:])


@pytest.mark.parametrize("steps", [10, 1_000])
def test_a_model_call_reads_only_the_events_since_the_previous_one(steps: int) -> None:
    """At any length of the invocation, a model call reads two new events: the call and its response."""
    log = log_of(user_message("go"))
    for number in range(1, steps):
        add_step(log, number)
    assert len(prompt.contents(log)) == 2 * steps - 1
    log.state.events = events = CountedEvents(log.state.events)
    add_step(log, steps)
    assert len(prompt.contents(log)) == 2 * steps + 1
    assert events.reads == 2


@pytest.mark.parametrize("messages", [10, 1_000])
def test_a_message_of_a_session_reads_only_the_events_since_the_previous_message(messages: int) -> None:
    """At any length of the session, a message reads the earlier message and its answer."""
    transcript = Transcript("s")
    transcript.events = events = CountedEvents()
    for number in range(1, messages + 1):
        log = invocation(f"s/{number}", user_message("one"), model_replied("1"))
        transcript.logs[log.invocation_id] = log
        conversation = Conversation(log, transcript, len(transcript.events))
        events.reads = 0
        assert len(prompt.contents(conversation)) == 2 * number
        transcript.events.extend(log.state.events)
    assert events.reads == 2


def test_a_window_that_is_not_due_reads_only_the_events_since_the_last_summary() -> None:
    """The number of events read does not grow with the session."""
    covered = Covered(first="i1/e1", last="i998/e2", count=1_996)
    events = [*(event for number in range(1, 1_000) for event in turn(number)), *turn(1_000)[:1]]
    events = CountedEvents([*events[:1_998], summary_event("i999/e3", covered, SUMMARY), *events[1_998:]])
    view = ConversationView(events, "ag", None, "i1000", lambda _event, _id: False)
    assert view.due_window(2, 1) is None
    assert events.reads <= 6


def test_an_overtaken_invocation_keeps_its_earlier_events() -> None:
    """An overtaken invocation never sees events that the session recorded after it started."""
    transcript = Transcript("s")
    first, second, third = (invocation(f"s/{n}", user_message(str(n)), model_calls("ask")) for n in (1, 2, 3))
    transcript.logs = {log.invocation_id: log for log in (first, second)}
    transcript.events.extend(first.state.events)
    overtaken = Conversation(second, transcript, 2)
    before = prompt.contents(overtaken)
    transcript.events.extend(second.state.events)
    assert len(prompt.contents(Conversation(third, transcript, 4))) == 9
    assert prompt.contents(overtaken) == before
    second.extend(log_of(user_message("2"), model_calls("ask"), tool_returned("fc-1", {"v": 1})).entries[-1:])
    assert prompt.contents(overtaken)[:5] == before[:5]


def test_a_late_answer_moves_the_start_of_the_turn_back_to_its_call() -> None:
    """An agent that sees only the current turn receives the call together with the answer."""
    log = log_of(
        user_message("pay"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked."),
        MessageJoined("hurry"),
    )
    assert len(prompt.contents(log, current_turn_only=True)) == 1
    log.extend(log_of(user_message(""), model_calls("ask"), answered("fc-1")).entries[-1:])
    pay = {"role": "user", "parts": [{"text": "pay"}]}
    assert prompt.contents(log, current_turn_only=True)[0] == pay


def test_contents_of_an_earlier_request_never_change() -> None:
    """A late answer replaces the response only in later requests, not in one that may still be sent."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked."),
    )
    contents = prompt.contents(log)
    before = copy.deepcopy(contents)
    log.extend(log_of(user_message(""), model_calls("ask"), answered("fc-1")).entries[-1:])
    assert prompt.contents(log) != before
    assert contents == before


def test_a_request_may_reorder_its_contents() -> None:
    """The returned list belongs to the caller; changing it does not affect the next request."""
    log = log_of(user_message("go"), model_calls("a"), tool_returned("fc-1", {}))
    before = prompt.contents(log)
    prompt.contents(log).clear()
    assert prompt.contents(log) == before


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_growing_prompts_equal_prompts_built_at_once(data: st.DataObject) -> None:
    """Growing prompts equal rebuilt ones for each agent and branch, with summaries and overlapping messages."""
    stories = [Story(data).play().whole for _ in range(data.draw(st.integers(1, 3)))]
    transcript = Transcript("s")
    started = [_Growing(log_of(user_message("one"), model_replied("1")), transcript, 1)]
    while stories or any(growing.rest for growing in started):
        unfinished = [growing for growing in started if growing.rest]
        if stories and (not unfinished or data.draw(st.booleans())):
            started.append(_Growing(stories.pop(), transcript, len(started) + 1))
            unfinished = started[-1:]
        growing = data.draw(st.sampled_from(unfinished))
        growing.grow(data.draw(st.integers(1, 20)))
        if data.draw(st.integers(0, 5)) == 0:
            growing.summarize(data.draw(st.integers(0, 3)))
        growing.check()


class _Growing:
    """An invocation of a session whose log is extended in pieces."""

    def __init__(self, whole: Log, transcript: Transcript, number: int) -> None:
        self.log, self.rest = Log(f"s/{number}"), list(whole.entries)
        self.conversation = Conversation(self.log, transcript, len(transcript.events))
        self.runs = sorted({(run.agent, run.branch or "") for run in whole.state.runs.by_index.values()})
        transcript.logs[self.log.invocation_id] = self.log
        self._reported = 0

    def grow(self, count: int) -> None:
        """Append entries, and report the new events to the session."""
        self.log.extend(self.rest[:count])
        del self.rest[:count]
        self._report()

    def summarize(self, retention: int) -> None:
        """Append a summary of earlier events, if there are any to summarize."""
        work = next(iter(self.log.state.runs.by_index.values()), None)
        chosen = ConversationView.of(self.conversation, work).over_threshold(retention) if work else None
        summary = work and chosen and chosen.compaction(content=SUMMARY).event(self.log.invocation_id, work.branch)
        if summary:
            self.check(summary)
            number = len(self.log.state.events) + 1
            self.log.state.events.append(summary.model_copy(update={"id": f"{self.log.invocation_id}/e{number}"}))
            self._report()

    def check(self, summary: Event | None = None) -> None:
        """Compare the prompts with those of copies, for which nothing is cached."""
        for agent, branch in self.runs:
            for current_turn_only in (False, True):
                view: dict[str, Any] = {"agent": agent, "branch": branch or None, "summary": summary}
                view["current_turn_only"] = current_turn_only
                assert prompt.contents(self.conversation, **view) == self._at_once(**view)

    def _at_once(self, **view: Any) -> Sequence[JsonObject]:
        log, transcript = copy.copy(self.log), copy.copy(self.conversation.earlier)
        return prompt.contents(Conversation(log, transcript, self.conversation.count), **view)

    def _report(self) -> None:
        self.conversation.earlier.events.extend(self.log.state.events[self._reported :])
        self._reported = len(self.log.state.events)
