"""What an invocation does next, given what happened."""

from tests.unit.core.story import (
    answered,
    asked_model,
    begun,
    called,
    cancelled,
    expired,
    log_of,
    lost,
    rejected,
    replied,
    responses,
    returned,
    said,
)
from waystation.core import Budget, CallModel, Cancel, CancelRequested, EventActions, Finish, Perform, Wait, next_step


def test_a_message_is_shown_to_the_model() -> None:
    """The first thing an invocation does is call the model."""
    assert next_step(log_of(begun("hello"))) == CallModel(0, "enter")


def test_while_the_model_thinks_the_invocation_waits() -> None:
    """Nothing is decided before the reply."""
    assert next_step(log_of(said("hello"))) == Wait()


def test_text_ends_the_invocation() -> None:
    """A reply without calls is final."""
    assert next_step(log_of(said("hello"), replied("hi"))) == Finish()


def test_calls_of_one_reply_are_carried_out_together() -> None:
    """One batch, in call order."""
    assert next_step(log_of(said("go"), called("a", "b"))) == Perform(("fc-1", "fc-2"))


def test_the_model_hears_of_a_batch_when_every_call_has_returned() -> None:
    """Not before: it would see calls without responses."""
    half = log_of(said("go"), called("a", "b"), returned("fc-2", {"v": 2}))
    assert next_step(half) == Perform(("fc-1",))
    whole = log_of(said("go"), called("a", "b"), returned("fc-2", {"v": 2}), returned("fc-1", {"v": 1}))
    assert next_step(whole) == CallModel(0, "turn")
    assert responses(whole) == [("fc-1", {"v": 1}), ("fc-2", {"v": 2})]


def test_a_gated_call_is_not_carried_out_before_it_is_confirmed() -> None:
    """A confirmation wait comes before the activity."""
    log = log_of(said("pay 900"), called("pay", gated=True))
    assert next_step(log) == Wait()
    assert [call.function_call_id for call in log.state.pending()] == ["fc-1"]


def test_a_confirmed_call_is_carried_out() -> None:
    """Approval lets it run, and nothing else."""
    assert next_step(log_of(said("pay 900"), called("pay", gated=True), answered("fc-1"))) == Perform(("fc-1",))


def test_an_edited_call_is_carried_out_with_the_edited_arguments() -> None:
    """`edit` is an approval of other arguments."""
    log = log_of(
        said("pay 900"), called("pay", gated=True, args={"amount": 900}), answered("fc-1", "edit", args={"amount": 9})
    )
    assert log.state.calls["fc-1"].args == {"amount": 9}
    assert next_step(log) == Perform(("fc-1",))


def test_a_rejected_call_is_answered_not_raised() -> None:
    """Rejecting a call does not end the invocation: the model is told and goes on."""
    log = log_of(said("pay 900"), called("pay", gated=True), rejected("fc-1", by="dana", comment="too much"))
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1] == ("fc-1", {"error": "This tool call is rejected.", "comment": "too much"})


def test_a_long_running_call_that_says_nothing_is_waited_for() -> None:
    """A falsy result leaves the call without a response; the model is not called."""
    log = log_of(said("ask"), called("ask", kind="long_running"), returned("fc-1", None, final=False))
    assert next_step(log) == Wait()


def test_a_long_running_call_that_says_something_is_told_to_the_model_and_stays_open() -> None:
    """After an interim response the model speaks, and then the invocation waits on."""
    told = log_of(said("ask"), called("ask", kind="long_running"), returned("fc-1", {"status": "pending"}, final=False))
    assert next_step(told) == CallModel(0, "turn")
    spoke = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        replied("I asked."),
    )
    assert next_step(spoke) == Wait()


def test_two_answers_that_arrive_together_wake_the_model_once() -> None:
    """One model call serves both."""
    open_calls = [
        said("ask"),
        called("ask", "ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        returned("fc-2", {"status": "pending"}, final=False),
        asked_model(),
        replied("I asked both."),
    ]
    both = log_of(*open_calls, answered("fc-1"), answered("fc-2"))
    assert next_step(both) == CallModel(0, "turn")
    heard = log_of(*open_calls, answered("fc-1"), answered("fc-2"), asked_model(3), replied("Both are fine."))
    assert next_step(heard) == Finish()


def test_an_answer_during_a_model_call_wakes_the_model_again() -> None:
    """The call in flight did not see it; its event follows the reply's."""
    log = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        answered("fc-1"),
        replied("Still waiting."),
    )
    assert next_step(log) == CallModel(0, "turn")
    assert [event.author for event in log.state.events][-2:] == ["ag", "user"]


def test_quiet_progress_does_not_wake_the_model() -> None:
    """`wake: false` records the update and leaves the model alone."""
    log = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        replied("I asked."),
        answered("fc-1", "progress", response={"done": "50%"}, wake=False),
    )
    assert next_step(log) == Wait()
    assert log.state.pending()[0].interim == {"done": "50%"}


def test_an_answer_before_the_function_returned_counts_and_its_state_is_kept() -> None:
    """Whoever is asked may be quicker than the function that asked."""
    log = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        answered("fc-1", comment="ok"),
        returned("fc-1", {"status": "pending"}, final=False, state={"ticket": 7}),
    )
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log) == [("fc-1", {"status": "approved", "comment": "ok"})]
    assert log.state.session.values == {"ticket": 7}


def test_a_falsy_long_running_result_keeps_its_state() -> None:
    """ADK loses it; here the delta is recorded."""
    log = log_of(
        said("ask"), called("ask", kind="long_running"), returned("fc-1", None, final=False, state={"ticket": 7})
    )
    assert log.state.session.values == {"ticket": 7}


def test_an_expired_call_is_told_and_never_approved() -> None:
    """A deadline that passes answers the call with an error."""
    log = log_of(said("pay 900"), called("pay", gated=True), expired("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    call, response = responses(log)[-1]
    assert (call, response["status"], response["error_type"]) == ("fc-1", "expired", "Expired")


def test_a_call_that_expires_while_a_sibling_still_runs_is_told_with_it() -> None:
    """No call is left without a response."""
    log = log_of(
        said("go"),
        called("ask", "ask", kind="long_running"),
        returned("fc-2", None, final=False),
        expired("fc-2"),
        returned("fc-1", {"status": "pending"}, final=False),
    )
    assert [call for call, _ in responses(log)] == ["fc-1", "fc-2"]


def test_a_lost_call_is_told_as_unknown() -> None:
    """The model must not believe that nothing happened."""
    log = log_of(said("pay"), called("pay", effect="once"), lost("fc-1"))
    assert next_step(log) == CallModel(0, "turn")
    assert responses(log)[-1][1]["error_type"] == "OutcomeUnknown"


def test_skip_summarization_ends_the_invocation_without_the_model() -> None:
    """The tool's response is the last word."""
    log = log_of(
        said("show"), called("show"), returned("fc-1", {"v": 1}, actions=EventActions(skip_summarization=True))
    )
    assert next_step(log) == Finish()


def test_the_model_is_called_no_more_often_than_the_budget_allows() -> None:
    """The invocation stops and says why."""
    log = log_of(
        said("go", budget=Budget(max_llm_calls=1)),
        called("a"),
        returned("fc-1", {"v": 1}),
    )
    assert next_step(log) == Finish(reason="max_llm_calls: the limit of 1 model calls is used up")


def test_cancelling_wins_over_an_approval() -> None:
    """Whatever else arrived in the same task."""
    log = log_of(said("pay"), called("pay", gated=True), answered("fc-1"), CancelRequested())
    assert next_step(log) == Cancel()


def test_cancelling_seals_what_waits() -> None:
    """Every call of a cancelled invocation has a response that says so."""
    log = log_of(said("pay"), called("pay", "pay", gated=True), cancelled())
    assert [(call, response["error_type"]) for call, response in responses(log)] == [
        ("fc-1", "Cancelled"),
        ("fc-2", "Cancelled"),
    ]
    assert log.state.events[-1].error_code == "INVOCATION_CANCELLED"


def test_parallel_writes_merge_in_call_order() -> None:
    """The later call wins a scalar, dictionaries merge, whichever tool finished last."""
    log = log_of(
        said("go"),
        called("a", "b"),
        returned("fc-2", {}, state={"k": 2, "d": {"n2": 2}}),
        returned("fc-1", {}, state={"k": 1, "d": {"n1": 1}}),
    )
    assert log.state.session.values == {"k": 2, "d": {"n1": 1, "n2": 2}}


def test_a_removed_key_is_gone_and_none_is_a_value() -> None:
    """Only `del` deletes."""
    actions = EventActions(state_delta={"none": None}, removed_keys=("old",))
    log = log_of(said("go", state={"old": 1}), called("a"), returned("fc-1", {}, actions=actions))
    assert log.state.session.values == {"none": None}
    assert (log.state.result().state_delta, log.state.result().removed_keys) == ({"none": None}, ("old",))


def test_temporary_state_never_leaves_the_invocation() -> None:
    """`temp:` keys are readable inside and absent from the result."""
    log = log_of(said("go"), called("a"), returned("fc-1", {}, state={"temp:x": 1, "y": 2}))
    assert log.state.session.values == {"temp:x": 1, "y": 2}
    assert log.state.result().state_delta == {"y": 2}
