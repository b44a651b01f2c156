"""Late and repeated results change nothing that was decided, and no pending work is forgotten."""

from typing import Any

import pytest

from tests.unit.core.stage import Stage, call, composite, llm, text
from tests.unit.core.story import (
    answered,
    log_of,
    model_called,
    model_calls,
    model_replied,
    responses,
    tool_returned,
    user_message,
)
from tests.unit.core.test_asking import CONFIG, kinds, request_confirmation, request_login
from waystation.core.contract import (
    AgentSpec,
    CallbackResult,
    Confirmation,
    EventActions,
    InvocationInput,
    InvocationResult,
    ModelReply,
    ToolConfirmation,
    ToolOutcome,
)
from waystation.core.log import (
    Began,
    CallModel,
    CallReturned,
    CancelRequested,
    ChildReturned,
    Ended,
    Finish,
    Log,
    ModelCalled,
    ModelReplied,
    Perform,
    Wait,
    is_working,
    next_step,
    parse_ref,
)
from waystation.core.log.budget_use import model_calls as count_model_calls

ESCALATE = EventActions(escalate=True)


def test_a_late_failure_of_a_stopped_agents_tool_is_ignored() -> None:
    """A late failure is ignored, because the call is already closed."""
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


def test_a_pending_call_of_a_stopped_agent_is_closed_in_an_event() -> None:
    """Readers of the events see no call that stays open while the model call is still in flight."""
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
def test_a_late_function_result_does_not_replace_an_answer(final: bool) -> None:
    """An approver answered before the function returned."""
    late = tool_returned("fc-1", {"late": True}, final=final)
    log = log_of(
        user_message("go"),
        model_calls("tool", kind="long_running"),
        answered("fc-1", "respond", response={"n": 1}),
        late,
    )
    assert log.state.calls["fc-1"].response == {"n": 1}


def test_a_function_that_asks_after_its_call_was_answered_is_ignored() -> None:
    """The answered call requests no confirmation."""
    answer = answered("fc-1", "respond", response={"n": 1})
    log = log_of(user_message("go"), model_calls("tool", kind="long_running"), answer, *request_confirmation("fc-1"))
    assert log.state.pending() == []
    assert next_step(log) == CallModel(0, "turn")


def test_progress_before_the_function_returned_is_newer_than_its_result() -> None:
    """The interim result describes the moment of the call, so the progress report replaces it."""
    progress = answered("fc-1", "progress", response={"done": 0.5})
    log = log_of(
        user_message("go"),
        model_calls("tool", kind="long_running"),
        progress,
        tool_returned("fc-1", {"done": 0}, final=False),
    )
    assert log.state.pending()[0].interim == {"done": 0.5}


@pytest.mark.parametrize(("wake", "step"), [(True, CallModel(0, "turn")), (False, Wait())])
def test_progress_calls_the_model_unless_wake_is_false(wake: bool, step: object) -> None:
    """With `wake=False`, the model receives the progress at its next call."""
    log = log_of(
        user_message("go"),
        model_calls("tool", kind="long_running"),
        tool_returned("fc-1", {"done": 0}, final=False),
        model_called(),
        model_replied("It runs."),
        answered("fc-1", "progress", response={"done": 0.5}, wake=wake),
    )
    assert next_step(log) == step


def test_the_answer_of_a_called_agent_passes_the_callbacks_once() -> None:
    """The model is called after the callbacks."""
    log = log_of(user_message("go"), model_calls("helper", kind="agent", agent="helper", after=True))
    log.append(parse_ref("fc-1"), 0, ChildReturned("fc-1", InvocationResult(text="done")))
    assert next_step(log) == Perform(("fc-1",))
    log.append(parse_ref("fc-1~1"), 0, tool_returned("fc-1", {"result": "seen"}, run=1))
    assert next_step(log) == CallModel(0, "turn")


def test_an_agent_that_a_callback_answered_for_called_no_model() -> None:
    """The reply of a callback counts as a model call neither in the budget nor in the events."""
    spoken = CallbackResult(content={"role": "model", "parts": [{"text": "closed"}]})
    log = log_of(user_message("go"), ModelReplied(0, ModelReply(before=spoken, skipped=True)))
    assert (count_model_calls(log.state), len(log.state.events)) == (0, 2)


def test_running_callbacks_are_not_model_calls() -> None:
    """Callbacks after an agent or before a composite do not count as model calls."""
    leaving = Stage(llm("a"), a=[ModelReply(content={"role": "model", "parts": []}, shape=llm("a", after=True))])
    leaving.ask()
    leaving.answer()
    leaving.ask()
    assert (leaving.asked, count_model_calls(leaving.log.state)) == (["a", "a:leave"], 1)
    entering = Stage(composite("sequential", composite("sequential", llm("a"), before=True, name="inner")))
    entering.ask()
    entering.answer()
    entering.ask()
    assert (entering.asked, count_model_calls(entering.log.state)) == (["sequential", "inner"], 0)


def test_callbacks_after_an_agent_run_though_the_budget_is_used_up() -> None:
    """The callbacks after an agent still run, because they call no model."""
    last = ModelReply(content={"role": "model", "parts": [{"text": "end"}]}, shape=llm("a", after=True))
    stage = Stage(llm("a"), budget=1, a=[last])
    assert stage.play() == Finish()
    assert stage.asked == ["a", "a:leave"]


def test_an_interim_response_is_kept_for_the_next_run() -> None:
    """The interim response is kept until the next run returns, but does not call the model."""
    log = log_of(user_message("go"), model_calls("tool"), *request_confirmation("fc-1"), answered("fc-1"))
    call = log.state.calls["fc-1"]
    assert call.provisional
    assert (call.provisional.response, call.response, call.responded) == (
        {"status": "asked"},
        {"status": "asked"},
        False,
    )


def test_a_composite_that_a_callback_answered_for_runs_no_agent() -> None:
    """No agent of the composite runs, whatever the kind of composite."""
    log = Log("inv")
    log.append(parse_ref("start"), 0, Began(InvocationInput(agent="team", message="go")))
    log.append(parse_ref(">1"), 0, ModelCalled(1))
    shape = composite("sequential", llm("a"), name="team")
    log.append(parse_ref("m1"), 0, ModelReplied(1, ModelReply(shape=shape, skipped=True)))
    assert next_step(log) == Finish()
    assert [work.agent for work in log.state.runs.by_index.values()] == ["team"]


def test_a_call_answered_during_a_model_call_runs_after_the_reply() -> None:
    """The call runs whether or not the reply calls other tools."""
    thinking = [
        user_message("go"),
        model_calls("tool"),
        *request_confirmation("fc-1"),
        model_called(),
        answered("fc-1"),
    ]
    assert next_step(log_of(*thinking)) == Wait()
    assert next_step(log_of(*thinking, model_replied("I have asked."))) == Perform(("fc-1",))
    assert next_step(log_of(*thinking, model_calls("other", id="fc-2"))) == Perform(("fc-1", "fc-2"))


def test_an_approval_lets_no_other_call_run() -> None:
    """Each call needs its own approval, even if two ask for the same confirmation."""
    same = ToolConfirmation(hint="Sure?", payload=CONFIG)
    for first, second in (
        request_confirmation("fc-1", "fc-2"),
        [
            tool_returned(id, {}, actions=EventActions(requested_tool_confirmations={id: same}))
            for id in ("fc-1", "fc-2")
        ],
    ):
        log = log_of(user_message("go"), model_calls("tool", "other"), first, second, answered("fc-1"))
        assert next_step(log) == Perform(("fc-1",))
        assert [call.function_call_id for call in log.state.pending()] == ["fc-2"]


@pytest.mark.parametrize("keys", [("github", "calendar"), ({"a": 1}, {"a": 1}), (None, None)])
def test_a_login_resumes_no_call_that_needs_another_one(keys: tuple[Any, Any]) -> None:
    """A key that is not text identifies no login, so each call requests its own."""
    configs = [{"credentialKey": key, "authScheme": {}} for key in keys]
    needs = [
        tool_returned(id, {}, actions=EventActions(requested_auth_configs={id: config}))
        for id, config in zip(("fc-1", "fc-2"), configs, strict=True)
    ]
    log = log_of(user_message("go"), model_calls("tool", "other"), *needs, answered("fc-1"))
    assert next_step(log) == Perform(("fc-1",))
    assert [call.function_call_id for call in log.state.pending()] == ["fc-2"]


def test_a_second_login_does_not_rerun_a_running_call() -> None:
    """Only the call that requested it runs a third time; the other keeps its second run."""
    log = log_of(user_message("go"), model_calls("tool", "other"), *request_login("fc-1", "fc-2"), answered("fc-1"))
    second_request = EventActions(requested_auth_configs={"fc-1": CONFIG})
    log.append(parse_ref("fc-1~1"), 0, tool_returned("fc-1", {}, run=1, actions=second_request))
    log.append(parse_ref("s2"), 0, answered("fc-1"))
    assert [log.state.calls[id].run for id in ("fc-1", "fc-2")] == [2, 1]


def test_one_login_is_requested_once_before_the_responses() -> None:
    """The login is requested once, even if another call of the batch already has its result."""
    log = log_of(
        user_message("go"),
        model_calls("tool", "other", "third"),
        tool_returned("fc-3", {"v": 1}),
        *request_login("fc-1", "fc-2"),
    )
    assert kinds(log)[2:] == ["ag: adk_request_credential", "ag: tool= other= third="]
    assert len(log.state.events[2].function_calls()) == 1


def test_a_function_without_an_interim_response_leaves_no_event() -> None:
    """The call is pending, but has no response event."""
    log = log_of(user_message("go"), model_calls("tool", kind="long_running"), tool_returned("fc-1", None, final=False))
    assert kinds(log) == ["user: go", "ag: tool"]


def test_an_answer_reaches_the_model_in_spite_of_skip_summarization() -> None:
    """An answer calls the model, because `skip_summarization` of one tool does not apply to another call."""
    log = log_of(
        user_message("go"),
        model_calls("tool", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_calls("other", id="fc-2"),
        answered("fc-1"),
        tool_returned("fc-2", {"v": 1}, actions=EventActions(skip_summarization=True)),
    )
    assert next_step(log) == CallModel(0, "turn")


def log_with_structured_answer_and_pending_call() -> Log:
    """Return a log of a reply that has a structured answer and a call that needs confirmation."""
    first, second = call("fc-1", kind="answered", response={}), call("fc-2", confirmation=Confirmation(hint="?"))
    assert first.content
    assert second.content
    parts = [*first.content["parts"], *second.content["parts"]]
    closing = CallbackResult(content={"role": "model", "parts": [{"text": "the end"}]})
    reply = ModelReply(content={"role": "model", "parts": parts}, calls=(*first.calls, *second.calls), closing=closing)
    return log_of(user_message("go"), ModelReplied(0, reply))


def test_a_structured_answer_waits_for_every_response_of_its_reply() -> None:
    """A structured answer follows all responses, because it must not separate a call from its response."""
    log = log_with_structured_answer_and_pending_call()
    assert "ag: the end" not in kinds(log)
    log.append(parse_ref("s1"), 0, answered("fc-2"))
    log.append(parse_ref("fc-2"), 0, tool_returned("fc-2", {}))
    assert kinds(log)[-1] == "ag: the end"
    assert next_step(log) == Finish()


def test_a_cancelled_reply_has_no_structured_answer() -> None:
    """A cancelled reply has no structured answer, because its calls were closed without an answer."""
    log = log_with_structured_answer_and_pending_call()
    log.append(parse_ref("cancel"), 0, CancelRequested())
    log.append(parse_ref("end"), 0, Ended("cancelled"))
    assert "ag: the end" not in kinds(log)


def test_pending_calls_of_an_earlier_reply_are_closed_at_the_end() -> None:
    """Pending calls of an earlier reply are closed together with those of the latest reply."""
    log = log_of(
        user_message("go"),
        model_calls("tool", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_calls("other", id="fc-2", gated=True),
        [CancelRequested(), Ended("cancelled")],
    )
    assert [call.closed for call in log.state.calls.values()] == [True, True]
    assert {id for id, _ in responses(log)} == {"fc-1", "fc-2"}


def test_an_early_answer_is_recorded_though_the_function_never_returned() -> None:
    """An early answer is recorded even if the invocation was cancelled before the function returned."""
    early = answered("fc-1", "respond", response={"n": 1})
    log = log_of(
        user_message("go"), model_calls("tool", kind="long_running"), early, [CancelRequested(), Ended("cancelled")]
    )
    assert responses(log) == [("fc-1", {"n": 1})]


def test_no_agent_works_in_an_ended_invocation() -> None:
    """No agent is working in an ended invocation, even if a model call was due."""
    log = log_of(
        user_message("go"), model_calls("tool"), tool_returned("fc-1", {}), [CancelRequested(), Ended("cancelled")]
    )
    assert not is_working(log.state)


def test_an_endless_loop_of_skipped_agents_ends() -> None:
    """A loop ends even if callbacks reply for all agents, so that no model call counts against the budget."""
    spoken = ModelReply(before=CallbackResult(content={"role": "model", "parts": [{"text": "closed"}]}), skipped=True)
    stage = Stage(composite("loop", llm("a"), llm("b")), budget=5, a=[spoken] * 100, b=[spoken] * 100)
    step = stage.play()
    assert isinstance(step, Finish)
    assert step.reason == "max_llm_calls: callbacks spoke for agents 5 times, which is the limit"
    assert stage.asked == ["loop", "a", "b", "a", "b", "a"]


def test_an_endless_loop_keeps_only_its_current_agent_run() -> None:
    """Earlier rounds are kept only as events."""
    stage = Stage(composite("loop", llm("a"), llm("b")), budget=50)
    stage.play()
    assert stage.log.state.runs.begun == 52
    assert [stage.log.state.runs[child].agent for child in stage.log.state.runs[0].children] == ["a"]


def test_the_next_run_of_a_stopped_agents_tool_is_unwanted() -> None:
    """The next run of the tool is stopped; its earlier run has already returned."""
    confirmation = EventActions(requested_tool_confirmations={"fc-2-1": ToolConfirmation(hint="Sure?")})
    stage = Stage(
        composite("parallel", llm("a"), llm("b"), name="pa"),
        a=[text("mine", actions=ESCALATE)],
        b=[call("fc-2-1"), "I have asked."],
    )
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(3)
    outcome = ToolOutcome(function_call_id="fc-2-1", response={}, actions=confirmation)
    stage.log.append(parse_ref("fc-2-1"), 0, CallReturned(outcome))
    stage.ask()
    stage.answer(4)
    stage.log.append(parse_ref("s1"), 0, answered("fc-2-1"))
    assert stage.ask() == Perform(("fc-2-1",))
    stage.answer(2)
    assert stage.log.state.runs.unwanted == {"fc-2-1~1"}


def test_a_parallel_agent_that_escalates_finishes_its_turn() -> None:
    """An escalating parallel agent finishes its turn, and only its siblings are stopped."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"), a=[call("fc-1-1"), "I have it"])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.perform(escalate=True)
    assert stage.play() == Finish()
    assert stage.texts() == ["user: go", "a: I have it"]


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
    assert sorted(stage.texts()) == ["a: mine", "b: done", "c: done", "user: go"]


def test_agents_of_a_stopped_subtree_start_nothing_new() -> None:
    """A stopped sequence does not start its next agent."""
    late: AgentSpec = composite("sequential", llm("b"), llm("c"), name="late")
    stage = Stage(composite("parallel", llm("a"), late, name="pa"), a=[text("mine", actions=ESCALATE)])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.answer(3)
    assert next_step(stage.log) == Finish()
    assert [work.agent for work in stage.log.state.runs.by_index.values()] == ["pa", "a", "late", "b"]
