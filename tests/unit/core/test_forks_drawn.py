"""Any invocation can be forked from each of its events, and the fork inherits no permission."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core import story
from tests.unit.core.drawn import Story
from tests.unit.core.story import answered, log_of, model_calls, tool_returned
from waystation.core.approval import Answer, Verification, Verified
from waystation.core.contract import EventActions, Fork, InvocationInput
from waystation.core.log import (
    AnswerCounted,
    AnswerVerified,
    CallReturned,
    ChildReturned,
    Log,
    MessageRef,
    VerificationRef,
    VerificationRequested,
    next_step,
)
from waystation.core.log.decision import decide_verified
from waystation.core.payload import JsonObject
from waystation.core.projection import Snapshot, fork

NOW = 1_000_000.0


def draw_fork(data: st.DataObject) -> tuple[Log, Log]:
    """Return an invocation as of one of its events, and the log of a fork from that event."""
    source = Story(data).play().whole
    assume(source.state.event_count > 0)
    event = data.draw(st.integers(1, source.state.event_count))
    params = InvocationInput(agent="ag", message="go", fork=Fork(invocation_id="inv", event=event))
    assert params.fork is not None
    entries = fork.forked_entries(source, params.fork, params, NOW)
    return fork.log_until(source, event), Log("inv~1").extend(entries)


def list_texts(log: Log) -> list[JsonObject | None]:
    """Return the texts of agents and tools."""
    return [event.content for event in log.state.events if event.author != "user" and event.content]


def find_last_time(ours: Log, source: Log) -> float:
    """Return the time of the last entry that the fork took over."""
    kept = {entry.ref for entry in ours.entries}
    return [entry.time for entry in source.entries if entry.ref in kept][-1]


@given(st.data())
@settings(max_examples=drawn_examples(60), deadline=None)
def test_a_fork_takes_over_everything_up_to_the_event(data: st.DataObject) -> None:
    """The fork keeps the order of texts, has no model call in flight, and omits the end of the source.

    A failed call is tried again. A call that is pending again does not hold back the responses of its siblings.
    """
    source, ours = draw_fork(data)
    assume(source.state.outcome.ended is None and source.state.outcome.failure is None)
    texts = iter(list_texts(ours))
    assert all(content in texts for content in list_texts(source))
    assert len(list_texts(ours)) > len(list_texts(source)) or ours.state.session.values == source.state.session.values
    assert not ours.state.models_in_flight
    assert not ours.state.outcome.ended


def test_a_call_that_asked_twice_asks_the_second_question_again_in_a_fork() -> None:
    """The fork inherits the first answer, because the call ran with it and the model has seen the result."""

    def asks(**fields: Any) -> Any:
        config = EventActions(requested_auth_configs={"fc-1": {"credentialKey": "key"}}, **fields)
        return tool_returned("fc-1", {"status": "asked"}, actions=config, run=int(bool(fields)))

    answer = answered("fc-1", response={"token": 1})
    source = log_of(story.user_message("go"), model_calls("tool"), asks(), answer, asks(state_delta={"a": 1}))
    params = InvocationInput(agent="ag", message="go", fork=Fork(invocation_id="inv", event=source.state.event_count))
    ours = fork.make_fork_log(source, params, NOW)
    assert ours.state.session.values["a"] == 1
    assert [(call.id, call.run, call.asked) for call in ours.state.waiting()] == [("fc-1", 1, "credential")]


def test_a_verified_approval_of_a_call_without_a_result_stays_with_the_source() -> None:
    """The approver answered for the source, so the fork asks again."""
    source = log_of(story.user_message("pay"), model_calls("pay", gated=True, declared="schema"))
    vote = Answer(function_call_id="fc-1", action="approve", token="sealed")
    source.append(MessageRef("s", 1, "?"), 1_002, VerificationRequested("fc-1", vote))
    verified = decide_verified(source, "s1", Verification(who=Verified(subject="ann")), 1_003)
    source.append(VerificationRef(MessageRef("s", 1)), 1_003, verified)
    params = InvocationInput(agent="ag", message="go", fork=Fork(invocation_id="inv", event=source.state.event_count))
    ours = fork.make_fork_log(source, params, NOW)
    assert [call.id for call in source.state.performing()] == [call.id for call in ours.state.waiting()] == ["fc-1"]


@given(st.data())
@settings(max_examples=drawn_examples(60), deadline=None)
def test_no_call_runs_on_an_approval_of_the_source(data: st.DataObject) -> None:
    """A call that was approved in the source and has no result is pending again in the fork."""
    _, ours = draw_fork(data)
    assert ours.state.approvals.standing == ()
    assert not ours.state.approvals.submitted
    for call in ours.state.performing():
        assert call.gate != "passed"
        assert call.answer is None or call.call.kind == "long_running"
        assert not call.call.standing
    # An answer belongs to the result of a call that returned after the answer and asked again.
    undecided = set(fork.without_result(ours))
    for entry in reversed(ours.entries):
        match entry.body:
            case CallReturned(outcome):
                undecided.discard(outcome.function_call_id)
            case ChildReturned(call_id):
                undecided.discard(call_id)
            case AnswerCounted(call_id, answer) if call_id in undecided:
                assert answer.action == "progress"
            case VerificationRequested(call_id):
                assert call_id not in undecided
    answered = {str(entry.ref).rstrip("?") for entry in ours.entries if isinstance(entry.body, VerificationRequested)}
    assert {entry.body.ref for entry in ours.entries if isinstance(entry.body, AnswerVerified)} <= answered


@given(st.data())
@settings(max_examples=drawn_examples(60), deadline=None)
def test_the_snapshot_of_a_fork_decides_like_its_log(data: st.DataObject) -> None:
    """The snapshot has the same pending calls, each with its remaining time."""
    source, ours = draw_fork(data)
    assert ours.state.input is not None
    restored = Snapshot.of(ours).restored("inv~1", ours.state.input)
    assert next_step(restored) == next_step(ours)
    assert restored.state.pending() == ours.state.pending()
    theirs = {call.id: call for call in source.state.waiting()}
    for call in ours.state.waiting():
        if (other := theirs.get(call.id)) and other.waits == call.waits:
            assert call.due is not None
            assert other.due is not None
            assert abs((call.due - ours.entries[-1].time) - (other.due - find_last_time(ours, source))) < 1
