"""Deciding the next step of an invocation from its log."""

from tests.unit.core.story import (
    answered,
    cancelled,
    expired,
    invocation_began,
    log_of,
    model_called,
    model_calls,
    model_replied,
    rejected,
    responses,
    tool_lost,
    tool_returned,
    user_message,
)
from waystation.core.budget import Budget
from waystation.core.contract import EventActions
from waystation.core.log import (
    CallLost,
    CallModel,
    CallRef,
    Cancel,
    CancelRequested,
    Failure,
    Finish,
    Perform,
    Wait,
    next_step,
    parse_details,
)
from waystation.core.projection import TOOL_OUTCOME, target_entry


def test_a_message_is_sent_to_the_model() -> None:
    """An invocation begins with a model call."""
    assert next_step(log_of(invocation_began("hello"))) == CallModel(0, "enter")


def test_the_invocation_waits_during_a_model_call() -> None:
    """No other step is decided before the model replies."""
    assert next_step(log_of(user_message("hello"))) == Wait()


def test_text_ends_the_invocation() -> None:
    """A reply without calls is final."""
    assert next_step(log_of(user_message("hello"), model_replied("hi"))) == Finish()


def test_calls_of_one_reply_run_together() -> None:
    """The calls form one batch, in call order."""
    assert next_step(log_of(user_message("go"), model_calls("a", "b"))) == Perform(("fc-1", "fc-2"))


def test_the_model_is_called_after_the_whole_batch_returned() -> None:
    """The model is called when all calls of the batch have responses."""
    half = log_of(user_message("go"), model_calls("a", "b"), tool_returned("fc-2", {"v": 2}))
    assert next_step(half) == Perform(("fc-1",))
    whole = log_of(
        user_message("go"), model_calls("a", "b"), tool_returned("fc-2", {"v": 2}), tool_returned("fc-1", {"v": 1})
    )
    assert next_step(whole) == CallModel(0, "turn")
    assert responses(whole) == [("fc-1", {"v": 1}), ("fc-2", {"v": 2})]


def test_a_gated_call_does_not_run_before_its_confirmation() -> None:
    """The call is pending until it is confirmed."""
    log = log_of(user_message("pay 900"), model_calls("pay", gated=True))
    assert next_step(log) == Wait()
    assert [call.function_call_id for call in log.state.pending()] == ["fc-1"]


def test_a_confirmed_call_runs() -> None:
    """Approving a call runs exactly this call."""
    assert next_step(log_of(user_message("pay 900"), model_calls("pay", gated=True), answered("fc-1"))) == Perform(
        ("fc-1",)
    )


def test_an_edited_call_runs_with_the_edited_arguments() -> None:
    """The action `edit` approves the call with other arguments."""
    log = log_of(
        user_message("pay 900"),
        model_calls("pay", gated=True, args={"amount": 900}),
        answered("fc-1", "edit", args={"amount": 9}),
    )
    assert log.state.calls["fc-1"].args == {"amount": 9}
    assert next_step(log) == Perform(("fc-1",))


def test_a_rejected_call_is_reported_to_the_model() -> None:
    """Rejecting a call keeps the invocation running; the model receives the rejection."""
    log = log_of(
        user_message("pay 900"), model_calls("pay", gated=True), rejected("fc-1", by="dana", comment="too much")
    )
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1] == ("fc-1", {"error": "This tool call is rejected.", "comment": "too much"})


def test_a_long_running_call_without_a_result_is_pending() -> None:
    """A falsy result leaves the call without a response, and the model is not called."""
    log = log_of(user_message("ask"), model_calls("ask", kind="long_running"), tool_returned("fc-1", None, final=False))
    assert next_step(log) == Wait()


def test_an_interim_response_reaches_the_model_and_the_call_stays_open() -> None:
    """After the interim response the model replies, and then the invocation waits."""
    interim = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
    )
    assert next_step(interim) == CallModel(0, "turn")
    spoke = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked."),
    )
    assert next_step(spoke) == Wait()


def test_two_simultaneous_answers_cause_one_model_call() -> None:
    """One model call receives both answers."""
    open_calls = [
        user_message("ask"),
        model_calls("ask", "ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        tool_returned("fc-2", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked both."),
    ]
    both = log_of(*open_calls, answered("fc-1"), answered("fc-2"))
    assert next_step(both) == CallModel(0, "turn")
    answered_log = log_of(
        *open_calls, answered("fc-1"), answered("fc-2"), model_called(3), model_replied("Both are fine.")
    )
    assert next_step(answered_log) == Finish()


def test_an_answer_waits_for_a_running_sibling() -> None:
    """The model receives both responses together, in call order."""
    running = [user_message("go"), model_calls("ask", "ask", kind="long_running"), answered("fc-1")]
    assert next_step(log_of(*running)) == Perform(("fc-1", "fc-2"))
    log = log_of(*running, tool_returned("fc-1", None, final=False), tool_returned("fc-2", {"v": 2}))
    assert next_step(log) == CallModel(0, "turn")


def test_an_answer_during_a_model_call_causes_another_one() -> None:
    """The call in flight did not see the answer, whose event follows the reply."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        answered("fc-1"),
        model_replied("Still waiting."),
    )
    assert next_step(log) == CallModel(0, "turn")
    assert [event.author for event in log.state.events][-2:] == ["ag", "user"]


def test_progress_with_wake_false_causes_no_model_call() -> None:
    """Progress with `wake=False` is recorded without a model call."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked."),
        answered("fc-1", "progress", response={"done": "50%"}, wake=False),
    )
    assert next_step(log) == Wait()
    assert log.state.pending()[0].interim == {"done": "50%"}


def test_an_answer_before_the_function_returned_counts() -> None:
    """The state that the function wrote is kept, too."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        answered("fc-1", comment="ok"),
        tool_returned("fc-1", {"status": "pending"}, final=False, state={"ticket": 7}),
    )
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log) == [("fc-1", {"status": "approved", "comment": "ok"})]
    assert log.state.session.values == {"ticket": 7}


def test_a_falsy_long_running_result_keeps_its_state() -> None:
    """ADK loses this state; here the delta is recorded."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", None, final=False, state={"ticket": 7}),
    )
    assert log.state.session.values == {"ticket": 7}


def test_an_expired_call_is_reported_and_never_approved() -> None:
    """The model receives an error when the deadline passes."""
    log = log_of(user_message("pay 900"), model_calls("pay", gated=True), expired("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    call, response = responses(log)[-1]
    assert (call, response["status"], response["error_type"]) == ("fc-1", "expired", "Expired")


def test_an_expired_call_is_reported_with_its_running_sibling() -> None:
    """No call is left without a response."""
    log = log_of(
        user_message("go"),
        model_calls("ask", "ask", kind="long_running"),
        tool_returned("fc-2", None, final=False),
        expired("fc-2"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
    )
    assert [call for call, _ in responses(log)] == ["fc-1", "fc-2"]


def test_a_lost_call_is_reported_as_unknown() -> None:
    """The response says that the outcome is unknown, because the tool may have had an effect."""
    log = log_of(user_message("pay"), model_calls("pay", effect="once"), tool_lost("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1][1]["error_type"] == "OutcomeUnknown"


def test_skip_summarization_ends_the_invocation_without_the_model() -> None:
    """The tool's response ends the invocation."""
    log = log_of(
        user_message("show"),
        model_calls("show"),
        tool_returned("fc-1", {"v": 1}, actions=EventActions(skip_summarization=True)),
    )
    assert next_step(log) == Finish()


def test_the_model_is_called_no_more_often_than_the_budget_allows() -> None:
    """An invocation that reaches the limit of its budget stops and reports it."""
    log = log_of(
        user_message("go", budget=Budget(max_llm_calls=1)),
        model_calls("a"),
        tool_returned("fc-1", {"v": 1}),
    )
    assert next_step(log) == Finish(reason="max_llm_calls: the limit of 1 model calls is used up")


def test_cancelling_precedes_an_approval() -> None:
    """A cancellation precedes anything that arrives in the same task."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True), answered("fc-1"), CancelRequested())
    assert next_step(log) == Cancel()


def test_cancelling_closes_pending_calls() -> None:
    """Every pending call gets a response that reports the cancellation."""
    log = log_of(user_message("pay"), model_calls("pay", "pay", gated=True), cancelled())
    assert [(call, response["error_type"]) for call, response in responses(log)] == [
        ("fc-1", "Cancelled"),
        ("fc-2", "Cancelled"),
    ]
    assert log.state.events[-1].error_code == "INVOCATION_CANCELLED"


def test_parallel_writes_merge_in_call_order() -> None:
    """The later call wins a scalar and dictionaries merge, whichever tool finished last."""
    log = log_of(
        user_message("go"),
        model_calls("a", "b"),
        tool_returned("fc-2", {}, state={"k": 2, "d": {"n2": 2}}),
        tool_returned("fc-1", {}, state={"k": 1, "d": {"n1": 1}}),
    )
    assert log.state.session.values == {"k": 2, "d": {"n1": 1, "n2": 2}}


def test_a_removed_key_is_gone_and_none_is_a_value() -> None:
    """Only `del` removes a key."""
    actions = EventActions(state_delta={"none": None}, removed_keys=("old",))
    log = log_of(user_message("go", state={"old": 1}), model_calls("a"), tool_returned("fc-1", {}, actions=actions))
    assert log.state.session.values == {"none": None}
    assert (log.state.result().state_delta, log.state.result().removed_keys) == ({"none": None}, ("old",))


def test_temporary_state_never_leaves_the_invocation() -> None:
    """`temp:` keys are readable in the invocation and absent from its result."""
    log = log_of(user_message("go"), model_calls("a"), tool_returned("fc-1", {}, state={"temp:x": 1, "y": 2}))
    assert log.state.session.values == {"temp:x": 1, "y": 2}
    assert log.state.result().state_delta == {"y": 2}


def test_the_error_of_a_tool_cannot_pose_as_a_report_of_endpoints() -> None:
    """An activity of the user may fail with details of any form and size, which no history has to carry."""
    hostile = parse_details([{"endpoints": {"ended": ["billing"]}}], is_over=False)
    failure = Failure.model_validate({"kind": "error", **hostile})
    for lost in (target_entry(CallRef("fc-1"), failure), TOOL_OUTCOME.to_entry(CallRef("fc-1"), failure)):
        assert isinstance(lost, CallLost)
        assert lost.failure.endpoints == {}
