"""What comes late, twice or meanwhile: it changes nothing that stands, and nothing that is due is forgotten."""

from typing import Any

import pytest

from tests.unit.core.stage import Stage, call, composite, llm, text
from tests.unit.core.story import answered, asked_model, called, log_of, replied, responses, returned, said
from tests.unit.core.test_asking import CONFIG, asks, kinds, needs_login
from waystation.core import (
    AgentSpec,
    Began,
    CallbackResult,
    CallModel,
    CallReturned,
    CancelRequested,
    ChildReturned,
    Confirmation,
    Ended,
    EventActions,
    Finish,
    InvocationInput,
    InvocationResult,
    Log,
    ModelCalled,
    ModelReplied,
    ModelReply,
    Perform,
    ToolConfirmation,
    ToolOutcome,
    Wait,
    is_working,
    model_calls,
    next_step,
    parse_ref,
)

ESCALATE = EventActions(escalate=True)


def test_a_stopped_agents_tool_that_raises_late_fails_nothing() -> None:
    """Its call is closed, and stays so."""
    stage = Stage(
        composite("parallel", llm("a"), llm("b"), llm("c"), name="pa"),
        a=[text("mine", actions=ESCALATE)],
        b=[call("fc-2-1")],
    )
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(3)
    stage.answer(2)
    late = ToolOutcome(function_call_id="fc-2-1", error_type="ValueError", fatal=True)
    stage.log.append(parse_ref("fc-2-1"), 0, CallReturned(late))
    assert next_step(stage.log) == Finish()


def test_a_stopped_agents_waiting_call_is_closed_in_an_event_though_its_model_works() -> None:
    """Readers of the events see no call that stays open."""
    pending = ToolOutcome(function_call_id="fc-2-1", response={"status": "pending"}, final=False)
    stage = Stage(
        composite("parallel", llm("a"), llm("b"), name="pa"),
        a=[text("mine", actions=ESCALATE)],
        b=[call("fc-2-1", kind="long_running")],
    )
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(3)
    stage.log.append(parse_ref("fc-2-1"), 0, CallReturned(pending))
    stage.ask()
    stage.answer(2)
    assert responses(stage.log)[-1][1]["error_type"] == "Cancelled"


@pytest.mark.parametrize("final", [True, False])
def test_what_a_function_returns_after_its_call_was_answered_does_not_replace_the_answer(final: bool) -> None:
    """A person was faster."""
    late = returned("fc-1", {"late": True}, final=final)
    log = log_of(said("go"), called("tool", kind="long_running"), answered("fc-1", "respond", response={"n": 1}), late)
    assert log.state.calls["fc-1"].response == {"n": 1}


def test_a_function_that_asks_after_its_call_was_answered_asks_nobody() -> None:
    """There is nothing left to agree to."""
    answer = answered("fc-1", "respond", response={"n": 1})
    log = log_of(said("go"), called("tool", kind="long_running"), answer, *asks("fc-1"))
    assert log.state.pending() == []
    assert next_step(log) == CallModel(0, "turn")


def test_progress_that_came_before_the_function_returned_is_the_newer_word() -> None:
    """The function speaks of the moment at which it was called."""
    progress = answered("fc-1", "progress", response={"done": 0.5})
    log = log_of(said("go"), called("tool", kind="long_running"), progress, returned("fc-1", {"done": 0}, final=False))
    assert log.state.pending()[0].interim == {"done": 0.5}


@pytest.mark.parametrize(("wake", "step"), [(True, CallModel(0, "turn")), (False, Wait())])
def test_progress_wakes_the_model_if_it_is_meant_to(wake: bool, step: object) -> None:
    """The default; otherwise it is told with whatever comes next."""
    log = log_of(
        said("go"),
        called("tool", kind="long_running"),
        returned("fc-1", {"done": 0}, final=False),
        asked_model(),
        replied("It runs."),
        answered("fc-1", "progress", response={"done": 0.5}, wake=wake),
    )
    assert next_step(log) == step


def test_what_a_called_agent_answers_passes_the_callbacks_once() -> None:
    """Then the model is told."""
    log = log_of(said("go"), called("helper", kind="agent", agent="helper", after=True))
    log.append(parse_ref("fc-1"), 0, ChildReturned("fc-1", InvocationResult(text="done")))
    assert next_step(log) == Perform(("fc-1",))
    log.append(parse_ref("fc-1~1"), 0, returned("fc-1", {"result": "seen"}, run=1))
    assert next_step(log) == CallModel(0, "turn")


def test_an_agent_that_was_spoken_for_has_not_called_its_model() -> None:
    """Neither the budget nor the events say that it had."""
    spoken = CallbackResult(content={"role": "model", "parts": [{"text": "closed"}]})
    log = log_of(said("go"), ModelReplied(0, ModelReply(before=spoken, skipped=True)))
    assert (model_calls(log.state), len(log.state.events)) == (0, 2)


def test_callbacks_that_are_under_way_are_no_model_calls() -> None:
    """Neither on leaving an agent nor on entering a composite."""
    leaving = Stage(llm("a"), a=[ModelReply(content={"role": "model", "parts": []}, shape=llm("a", after=True))])
    leaving.ask()
    leaving.answer()
    leaving.ask()
    assert (leaving.asked, model_calls(leaving.log.state)) == (["a", "a:leave"], 1)
    entering = Stage(composite("sequential", composite("sequential", llm("a"), before=True, name="inner")))
    entering.ask()
    entering.answer()
    entering.ask()
    assert (entering.asked, model_calls(entering.log.state)) == (["sequential", "inner"], 0)


def test_an_agent_is_left_though_the_budget_is_used_up() -> None:
    """Leaving it calls no model."""
    last = ModelReply(content={"role": "model", "parts": [{"text": "end"}]}, shape=llm("a", after=True))
    stage = Stage(llm("a"), budget=1, a=[last])
    assert stage.play() == Finish()
    assert stage.asked == ["a", "a:leave"]


def test_what_an_earlier_run_gave_is_kept_for_the_further_one() -> None:
    """It stands until that has returned, but the model does not go on with it."""
    log = log_of(said("go"), called("tool"), *asks("fc-1"), answered("fc-1"))
    call = log.state.calls["fc-1"]
    assert call.provisional
    assert (call.provisional.response, call.response, call.responded) == (
        {"status": "asked"},
        {"status": "asked"},
        False,
    )


def test_a_composite_that_was_spoken_for_runs_no_agent() -> None:
    """Whatever it consists of."""
    log = Log("inv")
    log.append(parse_ref("start"), 0, Began(InvocationInput(agent="team", message="go")))
    log.append(parse_ref(">1"), 0, ModelCalled(1))
    shape = composite("sequential", llm("a"), name="team")
    log.append(parse_ref("m1"), 0, ModelReplied(1, ModelReply(shape=shape, skipped=True)))
    assert next_step(log) == Finish()
    assert [work.agent for work in log.state.runs.by_index.values()] == ["team"]


def test_a_call_that_is_answered_while_its_model_thinks_runs_once_the_model_has_spoken() -> None:
    """Whether that calls further tools or not."""
    thinking = [said("go"), called("tool"), *asks("fc-1"), asked_model(), answered("fc-1")]
    assert next_step(log_of(*thinking)) == Wait()
    assert next_step(log_of(*thinking, replied("I have asked."))) == Perform(("fc-1",))
    assert next_step(log_of(*thinking, called("other", id="fc-2"))) == Perform(("fc-1", "fc-2"))


def test_an_agreement_lets_no_other_call_run() -> None:
    """Each call is agreed to by itself, also when two of them ask for the same."""
    same = ToolConfirmation(hint="Sure?", payload=CONFIG)
    for first, second in (
        asks("fc-1", "fc-2"),
        [returned(id, {}, actions=EventActions(requested_tool_confirmations={id: same})) for id in ("fc-1", "fc-2")],
    ):
        log = log_of(said("go"), called("tool", "other"), first, second, answered("fc-1"))
        assert next_step(log) == Perform(("fc-1",))
        assert [call.function_call_id for call in log.state.pending()] == ["fc-2"]


@pytest.mark.parametrize("keys", [("github", "calendar"), ({"a": 1}, {"a": 1}), (None, None)])
def test_a_login_lets_no_call_run_that_needs_another_one(keys: tuple[Any, Any]) -> None:
    """A key that is no text names nothing, so each is asked for."""
    configs = [{"credentialKey": key, "authScheme": {}} for key in keys]
    needs = [
        returned(id, {}, actions=EventActions(requested_auth_configs={id: config}))
        for id, config in zip(("fc-1", "fc-2"), configs, strict=True)
    ]
    log = log_of(said("go"), called("tool", "other"), *needs, answered("fc-1"))
    assert next_step(log) == Perform(("fc-1",))
    assert [call.function_call_id for call in log.state.pending()] == ["fc-2"]


def test_a_second_login_does_not_run_a_call_again_that_still_runs() -> None:
    """The call that needs it runs a third time, the other one goes on with its second."""
    log = log_of(said("go"), called("tool", "other"), *needs_login("fc-1", "fc-2"), answered("fc-1"))
    again = EventActions(requested_auth_configs={"fc-1": CONFIG})
    log.append(parse_ref("fc-1~1"), 0, returned("fc-1", {}, run=1, actions=again))
    log.append(parse_ref("s2"), 0, answered("fc-1"))
    assert [log.state.calls[id].run for id in ("fc-1", "fc-2")] == [2, 1]


def test_one_login_is_asked_for_in_one_part_before_the_responses() -> None:
    """Also when another call of the batch has its result."""
    log = log_of(said("go"), called("tool", "other", "third"), returned("fc-3", {"v": 1}), *needs_login("fc-1", "fc-2"))
    assert kinds(log)[2:] == ["ag: adk_request_credential", "ag: tool= other= third="]
    assert len(log.state.events[2].function_calls()) == 1


def test_a_function_that_returns_nothing_yet_leaves_no_event() -> None:
    """It waits in silence."""
    log = log_of(said("go"), called("tool", kind="long_running"), returned("fc-1", None, final=False))
    assert kinds(log) == ["user: go", "ag: tool"]


def test_an_answer_is_told_to_the_model_though_a_tool_wants_no_summary() -> None:
    """What the tool says of its own result does not hold for the answer."""
    log = log_of(
        said("go"),
        called("tool", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        called("other", id="fc-2"),
        answered("fc-1"),
        returned("fc-2", {"v": 1}, actions=EventActions(skip_summarization=True)),
    )
    assert next_step(log) == CallModel(0, "turn")


def closing_beside_a_question() -> Log:
    """A structured answer is given together with a call that a person has to confirm."""
    first, second = call("fc-1", kind="answered", response={}), call("fc-2", confirmation=Confirmation(hint="?"))
    assert first.content
    assert second.content
    parts = [*first.content["parts"], *second.content["parts"]]
    closing = CallbackResult(content={"role": "model", "parts": [{"text": "the end"}]})
    reply = ModelReply(content={"role": "model", "parts": parts}, calls=(*first.calls, *second.calls), closing=closing)
    return log_of(said("go"), ModelReplied(0, reply))


def test_a_closing_word_waits_for_every_response_of_its_reply() -> None:
    """It would otherwise stand between a call and its response."""
    log = closing_beside_a_question()
    assert "ag: the end" not in kinds(log)
    log.append(parse_ref("s1"), 0, answered("fc-2"))
    log.append(parse_ref("fc-2"), 0, returned("fc-2", {}))
    assert kinds(log)[-1] == "ag: the end"
    assert next_step(log) == Finish()


def test_a_closing_word_is_not_said_of_a_reply_that_was_cancelled() -> None:
    """Its calls were closed, not answered."""
    log = closing_beside_a_question()
    log.append(parse_ref("cancel"), 0, CancelRequested())
    log.append(parse_ref("end"), 0, Ended("cancelled"))
    assert "ag: the end" not in kinds(log)


def test_what_still_waits_from_an_earlier_reply_is_closed_at_the_end() -> None:
    """Together with the calls of the latest one."""
    log = log_of(
        said("go"),
        called("tool", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        called("other", id="fc-2", gated=True),
        [CancelRequested(), Ended("cancelled")],
    )
    assert [call.closed for call in log.state.calls.values()] == [True, True]
    assert {id for id, _ in responses(log)} == {"fc-1", "fc-2"}


def test_an_early_answer_is_in_the_events_though_the_function_never_returned() -> None:
    """The invocation was cancelled while it ran."""
    early = answered("fc-1", "respond", response={"n": 1})
    log = log_of(said("go"), called("tool", kind="long_running"), early, [CancelRequested(), Ended("cancelled")])
    assert responses(log) == [("fc-1", {"n": 1})]


def test_nobody_is_busy_in_an_invocation_that_has_ended() -> None:
    """Although a model was still to be told something."""
    log = log_of(said("go"), called("tool"), returned("fc-1", {}), [CancelRequested(), Ended("cancelled")])
    assert not is_working(log.state)


def test_an_endless_loop_ends_though_callbacks_always_speak_for_its_agents() -> None:
    """Their models are never called, so the budget of model calls alone would not end it."""
    spoken = ModelReply(before=CallbackResult(content={"role": "model", "parts": [{"text": "closed"}]}), skipped=True)
    stage = Stage(composite("loop", llm("a"), llm("b")), budget=5, a=[spoken] * 100, b=[spoken] * 100)
    step = stage.play()
    assert isinstance(step, Finish)
    assert step.reason == "max_llm_calls: callbacks spoke for agents 5 times, which is the limit"
    assert stage.asked == ["loop", "a", "b", "a", "b", "a"]


def test_an_endless_loop_keeps_only_its_present_agent() -> None:
    """What it did before is in the events."""
    stage = Stage(composite("loop", llm("a"), llm("b")), budget=50)
    stage.play()
    assert stage.log.state.runs.begun == 52
    assert [stage.log.state.runs[child].agent for child in stage.log.state.runs[0].children] == ["a"]


def test_the_further_run_of_a_stopped_agents_tool_is_not_wanted() -> None:
    """It is an activity of its own; the one that has returned needs no stopping."""
    asked = EventActions(requested_tool_confirmations={"fc-2-1": ToolConfirmation(hint="Sure?")})
    stage = Stage(
        composite("parallel", llm("a"), llm("b"), name="pa"),
        a=[text("mine", actions=ESCALATE)],
        b=[call("fc-2-1"), "I have asked."],
    )
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(3)
    outcome = ToolOutcome(function_call_id="fc-2-1", response={}, actions=asked)
    stage.log.append(parse_ref("fc-2-1"), 0, CallReturned(outcome))
    stage.ask()
    stage.answer(4)
    stage.log.append(parse_ref("s1"), 0, answered("fc-2-1"))
    assert stage.ask() == Perform(("fc-2-1",))
    stage.answer(2)
    assert stage.log.state.runs.unwanted == {"fc-2-1~1"}


def test_a_parallel_agent_that_escalates_still_says_its_last_word() -> None:
    """Only its siblings are stopped."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"), a=[call("fc-1-1"), "I have it"])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.perform(escalate=True)
    assert stage.play() == Finish()
    assert stage.said() == ["user: go", "a: I have it"]


def test_an_agent_deeper_in_a_branch_does_not_stop_the_others() -> None:
    """Only a direct child of a parallel agent stops its siblings when it escalates; see adk-semantics 9.2."""
    deep = composite("sequential", llm("a"), llm("b"), name="deep")
    stage = Stage(composite("parallel", deep, llm("c"), name="pa"), a=[text("mine", actions=ESCALATE)])
    stage.ask()
    stage.answer()
    stage.ask()
    assert stage.asked == ["pa", "c@pa.c", "a@pa.deep"]
    stage.answer(3)  # `a` escalates while the model of `c` is in flight
    assert stage.play() == Finish()
    assert sorted(stage.said()) == ["a: mine", "b: done", "c: done", "user: go"]


def test_the_agents_of_a_stopped_subtree_begin_nothing_more() -> None:
    """Nor those that a stopped sequence would have run next."""
    late: AgentSpec = composite("sequential", llm("b"), llm("c"), name="late")
    stage = Stage(composite("parallel", llm("a"), late, name="pa"), a=[text("mine", actions=ESCALATE)])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.answer(3)
    assert next_step(stage.log) == Finish()
    assert [work.agent for work in stage.log.state.runs.by_index.values()] == ["pa", "a", "late", "b"]
