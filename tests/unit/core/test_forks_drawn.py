"""Whatever happened to an invocation, it can be forked from each of its events, and no permission is taken along."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core import story
from tests.unit.core.drawn import Story
from tests.unit.core.story import answered, called, log_of, returned
from waystation.core import (
    AnswerCounted,
    AnswerSubmitted,
    AnswerVerified,
    CallReturned,
    ChildReturned,
    EventActions,
    Fork,
    InvocationInput,
    JsonObject,
    Log,
    Snapshot,
    next_step,
)
from waystation.core.log import fork

NOW = 1_000_000.0


def drawn(data: st.DataObject) -> tuple[Log, Log]:
    """Return what an invocation was at one of its events, and the log with which a fork from there begins."""
    source = Story(data).play().whole
    assume(source.state.event_count > 0)
    event = data.draw(st.integers(1, source.state.event_count))
    asked = InvocationInput(agent="ag", message="go", fork=Fork(invocation_id="inv", event=event))
    assert asked.fork is not None
    entries = fork.forked_entries(source, asked.fork, asked, NOW)
    return fork.log_until(source, event), Log("inv~1").extend(entries)


def said(log: Log) -> list[JsonObject | None]:
    """Return what agents and tools said."""
    return [event.content for event in log.state.events if event.author != "user" and event.content]


def moment(ours: Log, source: Log) -> float:
    """Return when, in the source, the last of the entries was applied that were taken over."""
    kept = {entry.ref for entry in ours.entries}
    return [entry.time for entry in source.entries if entry.ref in kept][-1]


@given(st.data())
@settings(max_examples=drawn_examples(60), deadline=None)
def test_what_was_said_up_to_the_event_is_taken_over(data: st.DataObject) -> None:
    """In its order; no model is under way. Only the end is not taken over, nor what it said.

    What failed is tried again. A call that waits anew lets the responses be told that came beside it.
    """
    source, ours = drawn(data)
    assume(source.state.outcome.ended is None and source.state.outcome.failure is None)
    told = iter(said(ours))
    assert all(content in told for content in said(source))
    assert len(said(ours)) > len(said(source)) or ours.state.session.values == source.state.session.values
    assert not ours.state.models_in_flight
    assert not ours.state.outcome.ended


def test_a_call_that_was_answered_and_then_asked_again_asks_the_second_time_in_a_fork() -> None:
    """The fork inherits the first answer, because the call ran with it. The model has seen what that run returned."""

    def asks(**fields: Any) -> Any:
        config = EventActions(requested_auth_configs={"fc-1": {"credentialKey": "key"}}, **fields)
        return returned("fc-1", {"status": "asked"}, actions=config, run=int(bool(fields)))

    answer = answered("fc-1", response={"token": 1})
    source = log_of(story.said("go"), called("tool"), asks(), answer, asks(state_delta={"a": 1}))
    asked = InvocationInput(agent="ag", message="go", fork=Fork(invocation_id="inv", event=source.state.event_count))
    ours = fork.make_fork_log(source, asked, NOW)
    assert ours.state.session.values["a"] == 1
    assert [(call.id, call.run, call.asked) for call in ours.state.waiting()] == [("fc-1", 1, "credential")]


@given(st.data())
@settings(max_examples=drawn_examples(60), deadline=None)
def test_no_call_runs_on_a_word_that_was_given_to_the_source(data: st.DataObject) -> None:
    """What a person had let through, and had no result, waits again; nothing runs unasked."""
    _, ours = drawn(data)
    assert ours.state.approvals.standing == ()
    assert not ours.state.approvals.submitted
    for call in ours.state.performing():
        assert call.gate != "passed"
        assert call.answer is None or call.call.kind == "long_running"
        assert not call.call.standing
    # An answer after which the call returned, and asked again, is part of its result.
    undecided = set(fork.without_result(ours))
    for entry in reversed(ours.entries):
        match entry.body:
            case CallReturned(outcome):
                undecided.discard(outcome.function_call_id)
            case ChildReturned(call_id):
                undecided.discard(call_id)
            case AnswerCounted(call_id, answer) if call_id in undecided:
                assert answer.action == "progress"
            case AnswerSubmitted(call_id):
                assert call_id not in undecided
    answered = {str(entry.ref).rstrip("?") for entry in ours.entries if isinstance(entry.body, AnswerSubmitted)}
    assert {entry.body.ref for entry in ours.entries if isinstance(entry.body, AnswerVerified)} <= answered


@given(st.data())
@settings(max_examples=drawn_examples(60), deadline=None)
def test_the_workflow_begins_with_a_snapshot_that_decides_as_the_whole_log(data: st.DataObject) -> None:
    """And waits for the same, each with the time that was left."""
    source, ours = drawn(data)
    assert ours.state.input is not None
    restored = Snapshot.of(ours).restored("inv~1", ours.state.input)
    assert next_step(restored) == next_step(ours)
    assert restored.state.pending() == ours.state.pending()
    theirs = {call.id: call for call in source.state.waiting()}
    for call in ours.state.waiting():
        if (other := theirs.get(call.id)) and other.waits == call.waits:
            assert call.due is not None
            assert other.due is not None
            assert abs((call.due - ours.entries[-1].time) - (other.due - moment(ours, source))) < 1
