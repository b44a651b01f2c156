"""Deciding which agents of a tree run, and when."""

from typing import Any

import pytest

from tests.unit.core.stage import Stage, call, composite, llm, text, transfer
from tests.unit.core.story import answered
from waystation.core.contract import (
    AgentSpec,
    BodyEvent,
    CallbackResult,
    Confirmation,
    EventActions,
    ModelReply,
    ToolOutcome,
)
from waystation.core.log import (
    CallReturned,
    CancelRequested,
    Ended,
    Failure,
    Finish,
    ModelLost,
    Perform,
    Wait,
    next_step,
    parse_ref,
)
from waystation.core.projection import Snapshot

ESCALATE = EventActions(escalate=True)


def test_a_sequence_runs_its_agents_one_after_the_other() -> None:
    """The agents run in order; the root is entered once, to resolve its kind."""
    stage = Stage(composite("sequential", llm("a"), llm("b")))
    assert stage.play() == Finish()
    assert stage.asked == ["sequential", "a", "b"]


def test_the_next_agent_of_a_sequence_waits_for_a_pending_call() -> None:
    """The next agent starts after the pending call is answered. ADK starts it at once, or never."""
    waits = call("fc-1-1", kind="long_running")
    stage = Stage(composite("sequential", llm("a"), llm("b")), a=[waits, "thanks"])
    stage.play()
    stage.log.append(parse_ref("fc-1-1"), 0, CallReturned(ToolOutcome(function_call_id="fc-1-1", final=False)))
    assert stage.play() == Wait()
    assert stage.asked == ["sequential", "a"]
    stage.log.append(parse_ref("s1"), 0, answered("fc-1-1"))
    assert stage.play() == Finish()
    assert stage.asked == ["sequential", "a", "a", "b"]


def test_a_sequence_waits_for_all_pending_calls_of_an_agent() -> None:
    """All pending calls of an agent are answered before the next agent starts.

    ADK loses the invocation; see adk-semantics 3.5.
    """
    first, second = call("fc-1-1", kind="long_running"), call("fc-1-2", kind="long_running")
    assert first.content
    assert second.content
    both = ModelReply(
        content={"role": "model", "parts": [*first.content["parts"], *second.content["parts"]]},
        calls=(*first.calls, *second.calls),
    )
    stage = Stage(composite("sequential", llm("a"), llm("b")), a=[both])
    stage.play()
    for id in ("fc-1-1", "fc-1-2"):
        stage.log.append(parse_ref(id), 0, CallReturned(ToolOutcome(function_call_id=id, final=False)))
    stage.log.append(parse_ref("s1"), 0, answered("fc-1-1"))
    assert stage.play() == Wait()
    stage.log.append(parse_ref("s2"), 0, answered("fc-1-2"))
    assert stage.play() == Finish()
    assert stage.asked == ["sequential", "a", "a", "b"]


@pytest.mark.parametrize(("limit", "times"), [(0, 0), (1, 1), (3, 3)])
def test_a_loop_runs_up_to_its_maximum(limit: int, times: int) -> None:
    """A maximum of zero runs no agent."""
    stage = Stage(composite("loop", llm("a"), llm("b"), max_iterations=limit))
    assert stage.play() == Finish()
    assert stage.asked == ["loop", *["a", "b"] * times]


def test_escalation_ends_a_loop_after_the_agents_own_turn() -> None:
    """The escalating agent finishes its turn, and the agents after it do not run."""
    stage = Stage(composite("loop", llm("a"), llm("b")), a=["one", call("fc-3-1"), "enough"])
    assert isinstance(stage.play(), Perform)
    stage.perform(escalate=True)
    assert stage.play() == Finish()
    assert stage.asked == ["loop", "a", "b", "a", "a"]
    assert stage.texts()[-1] == "a: enough"


def test_escalation_ends_outer_loops_too() -> None:
    """Escalation ends every enclosing loop, as in ADK; see adk-semantics 9.2."""
    inner = composite("loop", llm("a"), name="inner")
    stage = Stage(composite("loop", inner, llm("b"), name="outer"), a=[text("stop", actions=ESCALATE)])
    assert stage.play() == Finish()
    assert stage.asked == ["outer", "a"]


def test_a_sequence_ignores_escalation() -> None:
    """The agents after the escalating one still run."""
    stage = Stage(composite("sequential", llm("a"), llm("b")), a=[text("stop", actions=ESCALATE)])
    assert stage.play() == Finish()
    assert stage.asked == ["sequential", "a", "b"]


@pytest.mark.parametrize("children", [(), (composite("sequential"),), (composite("loop", max_iterations=0),)])
def test_a_loop_without_models_ends(children: tuple[AgentSpec, ...]) -> None:
    """A loop without a model ends even without a limit, because it could never escalate."""
    stage = Stage(composite("loop", *children))
    assert stage.play() == Finish()


def test_parallel_agents_run_on_their_own_branches() -> None:
    """All models are called before any of them has replied."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"))
    stage.ask()
    stage.answer()
    stage.ask()
    assert stage.asked == ["pa", "a@pa.a", "b@pa.b"]
    assert len(stage.flying) == 2
    assert stage.play() == Finish()
    assert [event.branch for event in stage.log.state.events] == [None, "pa.a", "pa.b"]


def test_one_parallel_agent_waits_while_the_other_continues() -> None:
    """A pending call pauses only its own branch."""
    shape = composite("sequential", composite("parallel", llm("a"), llm("b"), name="pa"), llm("c"))
    stage = Stage(shape, a=[call("fc-2-1", confirmation=Confirmation(hint="?"))])
    assert stage.play() == Wait()
    assert stage.asked == ["sequential", "a@pa.a", "b@pa.b"]
    assert [call.function_call_id for call in stage.log.state.pending()] == ["fc-2-1"]


def test_a_stopped_agent_transfers_to_nobody() -> None:
    """The transfer of a stopped agent is dropped, even if a call of its batch is still in flight."""
    handing, running = transfer("fc-2-1", llm("helper")), call("fc-2-2")
    assert handing.content
    assert running.content
    both = ModelReply(
        content={"role": "model", "parts": [*handing.content["parts"], *running.content["parts"]]},
        calls=(*handing.calls, *running.calls),
    )
    stage = Stage(composite("parallel", llm("a"), llm("b")), a=[call("fc-1-1")], b=[both])
    stage.ask()
    stage.answer()  # enters the parallel agent
    stage.ask()
    stage.answer()
    stage.answer()
    escalated = ToolOutcome(function_call_id="fc-1-1", response={}, actions=ESCALATE)
    stage.log.append(parse_ref("fc-1-1"), 0, CallReturned(escalated))
    assert [work.agent for work in stage.log.state.runs.at_work()] == ["parallel", "a"]


def test_a_direct_child_that_escalates_stops_its_siblings() -> None:
    """The activities of the siblings become unwanted, and their calls are closed."""
    stage = Stage(
        composite("parallel", llm("a"), llm("b"), llm("c"), name="pa"),
        a=[text("I have it", actions=ESCALATE)],
        b=[call("fc-2-1")],
    )
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(3)  # b calls its tool
    stage.answer(2)  # a escalates; the model call of c is in flight
    assert next_step(stage.log) == Finish()
    assert stage.log.state.runs.unwanted == {"fc-2-1", "m4"}
    assert stage.log.state.calls["fc-2-1"].closed


def test_a_late_reply_of_a_stopped_agent_is_ignored() -> None:
    """A late reply of a stopped agent is ignored, but its tokens count."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"), a=[text("mine", actions=ESCALATE)])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.answer(3)
    assert stage.texts() == ["user: go", "a: mine"]


def test_a_lost_model_call_of_a_stopped_agent_is_ignored() -> None:
    """A lost model call is ignored, because the activity of a stopped agent is cancelled."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"), a=[text("mine", actions=ESCALATE)])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.log.append(parse_ref("m3"), 0, ModelLost(3, Failure(kind="cancelled")))
    assert next_step(stage.log) == Finish()


def test_a_lost_model_call_on_one_branch_fails_the_invocation() -> None:
    """A lost model call on one branch fails the invocation, like an exception group in ADK."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"))
    stage.ask()
    stage.answer()
    stage.ask()
    stage.log.append(parse_ref("m3"), 0, ModelLost(3, Failure(kind="error", error_type="ModelFailed", message="no")))
    assert type(next_step(stage.log)).__name__ == "Fail"


def test_an_agent_transfers_the_conversation() -> None:
    """The other agent replies, and the first is not called again."""
    stage = Stage(llm("a"), a=[transfer("fc-1", llm("b"))], b=["here I am"])
    assert stage.play() == Finish()
    assert stage.asked == ["a", "b"]
    assert stage.log.state.result().text == "here I am"


def test_an_agent_may_transfer_to_a_sequence() -> None:
    """The transfer contains the spec of the sequence."""
    stage = Stage(llm("a"), a=[transfer("fc-1", composite("sequential", llm("b"), llm("c")))])
    assert stage.play() == Finish()
    assert stage.asked == ["a", "b", "c"]


def test_a_tool_may_transfer_while_its_siblings_finish() -> None:
    """The transfer takes place when the batch is complete."""
    first, second = call("fc-1"), call("fc-2")
    assert first.content
    assert second.content
    both = ModelReply(
        content={"role": "model", "parts": [*first.content["parts"], *second.content["parts"]]},
        calls=(*first.calls, *second.calls),
    )
    stage = Stage(llm("a"), a=[both])
    stage.play()
    outcome = ToolOutcome(
        function_call_id="fc-1", response={}, actions=EventActions(transfer_to_agent="b"), transfer=llm("b")
    )
    stage.log.append(parse_ref("fc-1"), 0, CallReturned(outcome))
    assert next_step(stage.log) == Perform(("fc-2",))
    stage.log.append(parse_ref("fc-2"), 0, CallReturned(ToolOutcome(function_call_id="fc-2", response={})))
    assert stage.play() == Finish()
    assert stage.asked == ["a", "b"]


def test_an_answer_goes_to_the_agent_that_made_the_call() -> None:
    """The calling agent gets the answer, even after it transferred the conversation; see adk-semantics 3.5."""
    waits = call("fc-1", kind="long_running")
    stage = Stage(llm("a"), a=[waits, transfer("fc-2", llm("b")), "thanks"], b=["hello"])
    stage.play()
    pending = ToolOutcome(function_call_id="fc-1", response={"status": "pending"}, final=False)
    stage.log.append(parse_ref("fc-1"), 0, CallReturned(pending))
    assert stage.play() == Wait()
    assert stage.asked == ["a", "a", "b"]
    stage.log.append(parse_ref("s1"), 0, answered("fc-1"))
    assert stage.play() == Finish()
    assert stage.asked == ["a", "a", "b", "a"]


def test_an_answer_during_a_transfer_reaches_its_agent() -> None:
    """The agent receives the answer in parallel with the agent that takes over."""
    both = call("fc-2", "tool")
    stage = Stage(llm("a"), a=[call("fc-1", kind="long_running"), both, "thanks"], b=["hello"])
    stage.play()
    pending = ToolOutcome(function_call_id="fc-1", response={"status": "pending"}, final=False)
    stage.log.append(parse_ref("fc-1"), 0, CallReturned(pending))
    assert isinstance(stage.play(), Perform)
    stage.log.append(parse_ref("s1"), 0, answered("fc-1"))
    handing = ToolOutcome(
        function_call_id="fc-2", response={}, actions=EventActions(transfer_to_agent="b"), transfer=llm("b")
    )
    stage.log.append(parse_ref("fc-2"), 0, CallReturned(handing))
    assert stage.play() == Finish()
    assert sorted(stage.asked) == ["a", "a", "a", "b"]
    assert "a: thanks" in stage.texts()


def test_the_next_message_goes_to_the_last_agent_that_may_keep_it() -> None:
    """The next message goes to the last agent that may keep the conversation; None stands for the root."""
    there = Stage(llm("a"), a=[transfer("fc-1", llm("b"))])
    there.play()
    assert there.log.state.result().next_agent == "b"
    bound = Stage(llm("a"), a=[transfer("fc-1", llm("b", keeps_turn=False))])
    bound.play()
    assert bound.log.state.result().next_agent is None


def test_callbacks_after_agents_run_when_no_work_is_left() -> None:
    """Callbacks of children run before those of the parent."""
    stage = Stage(composite("sequential", llm("a", after=True), llm("b"), after=True, name="sq"))
    assert stage.play() == Finish()
    assert stage.asked == ["sq", "a", "a:leave", "b", "sq:leave"]
    assert stage.texts() == ["user: go", "a: done", "a: a was here", "b: done", "sq: sq was here"]


def test_a_composite_with_callbacks_before_it_is_entered_by_an_activity() -> None:
    """A composite without them needs no activity."""
    inner = composite("sequential", llm("a"), before=True, name="inner")
    stage = Stage(composite("sequential", inner, name="outer"))
    assert stage.play() == Finish()
    assert stage.asked == ["outer", "inner", "a"]


def test_callbacks_may_answer_for_an_agent() -> None:
    """A callback's reply replaces the agent's model call, and that of the agents below it."""
    spoken = CallbackResult(content={"role": "model", "parts": [{"text": "closed today"}]})
    stage = Stage(composite("sequential", llm("a"), llm("b")), a=[ModelReply(before=spoken, skipped=True)])
    assert stage.play() == Finish()
    assert stage.texts() == ["user: go", "a: closed today", "b: done"]


def test_a_structured_answer_follows_the_responses_and_ends_the_agent() -> None:
    """The structured answer is the last event, and the model is not called again."""
    closing = CallbackResult(
        content={"role": "model", "parts": [{"text": '{"a": 1}'}]}, actions=EventActions(state_delta={"k": 1})
    )
    answer = call("fc-1", "set_model_response", kind="answered", response={"result": "ok"})
    stage = Stage(llm("a"), a=[answer.model_copy(update={"closing": closing, "output": {"a": 1}})])
    assert stage.play() == Finish()
    result = stage.log.state.result()
    assert (result.text, result.output, result.state_delta) == ('{"a": 1}', {"a": 1}, {"k": 1})


def test_a_plugin_may_answer_for_the_whole_invocation() -> None:
    """The reply of a plugin ends the invocation without running an agent."""
    spoken = CallbackResult(content={"role": "model", "parts": [{"text": "not now"}]})
    stage = Stage(llm("a"), a=[ModelReply(before=spoken, ends_invocation=True, skipped=True)])
    assert stage.play() == Finish()
    assert stage.log.state.result().text == "not now"


def test_the_budget_counts_only_model_calls_of_all_agents() -> None:
    """Only model calls count against the budget, not entries of composites and callbacks."""
    stage = Stage(composite("loop", llm("a", after=True)), budget=3)
    step = stage.play()
    assert isinstance(step, Finish)
    assert "limit of 3" in (step.reason or "")
    assert [name for name in stage.asked if name == "a"] == ["a"] * 3


def test_calls_of_parallel_agents_are_closed_at_the_end() -> None:
    """Pending calls on every branch are closed."""
    stage = Stage(
        composite("parallel", llm("a"), llm("b"), name="pa"),
        a=[call("fc-1-1", kind="long_running")],
        b=[call("fc-2-1", confirmation=Confirmation(hint="?"))],
    )
    stage.play()
    stage.log.append(parse_ref("cancel"), 0, CancelRequested())
    stage.log.append(parse_ref("end"), 0, Ended("cancelled"))
    assert all(call.closed for call in stage.log.state.calls.values())
    assert stage.log.state.pending() == []


def yielded_text(line: str, **fields: Any) -> BodyEvent:
    return BodyEvent(content={"role": "model", "parts": [{"text": line}]}, **fields)


def custom_stage(*replies: ModelReply, **fields: Any) -> Stage:
    """Return a stage with a custom agent whose body gives these replies; its sub-agents are `a` and `b`."""
    shape = composite("custom", llm("a"), llm("b"), name="story", **fields)
    return Stage(shape, story=[replies[0].model_copy(update={"shape": shape}), *replies[1:]])


def test_a_body_chooses_the_next_sub_agent() -> None:
    """The body runs again after each sub-agent, and the agent ends when it chooses none."""
    stage = custom_stage(
        ModelReply(begins=llm("b")), ModelReply(begins=llm("a")), ModelReply(begins=llm("b")), ModelReply()
    )
    assert stage.play() == Finish()
    assert stage.asked == ["story", "b", "story", "a", "story", "b", "story"]


def test_a_body_does_not_run_while_its_sub_agent_waits() -> None:
    """A pending call is part of the sub-agent's work."""
    stage = custom_stage(ModelReply(begins=llm("a")), ModelReply())
    stage.says("a", call("fc-1-1", kind="long_running"), "thanks")
    stage.play()
    stage.log.append(parse_ref("fc-1-1"), 0, CallReturned(ToolOutcome(function_call_id="fc-1-1", final=False)))
    assert stage.play() == Wait()
    assert stage.asked == ["story", "a"]
    stage.log.append(parse_ref("s1"), 0, answered("fc-1-1"))
    assert stage.play() == Finish()
    assert stage.asked == ["story", "a", "a", "story"]


def test_yielded_events_are_recorded_in_place() -> None:
    """Events of a body stand between those of its sub-agents, and their state belongs to the session."""
    counted = EventActions(state_delta={"round": 1})
    stage = custom_stage(
        ModelReply(yielded=(yielded_text("begin", actions=counted),), begins=llm("a")),
        ModelReply(yielded=(yielded_text("end", author="narrator"),)),
    )
    assert stage.play() == Finish()
    assert stage.texts() == ["user: go", "story: begin", "a: done", "narrator: end"]
    assert stage.log.state.session.values == {"round": 1}


def test_segments_of_a_body_contain_the_numbers_of_its_events() -> None:
    """A segment has its sub-agent and the event numbers at its begin, before its first and after its last event."""
    stage = custom_stage(
        ModelReply(yielded=(yielded_text("one"), yielded_text("two")), begins=llm("a")),
        ModelReply(begins=llm("b")),
        ModelReply(),
    )
    stage.play()
    assert stage.log.state.runs[0].segments == [(1, 1, 3, 1), (4, 4, 4, 2)]


def test_a_custom_agent_in_a_loop_can_end_the_loop() -> None:
    """An escalating event of the body ends the loop."""
    check = composite("custom", name="check")
    stage = Stage(
        composite("loop", llm("a"), check),
        check=[ModelReply(), ModelReply(yielded=(yielded_text("stop", actions=ESCALATE),))],
    )
    assert stage.play() == Finish()
    assert stage.asked == ["loop", "a", "check", "a", "check"]


@pytest.mark.parametrize(("repeats", "times"), [(True, 3), (False, 1)])
def test_a_loop_of_custom_agents_runs_up_to_its_maximum(repeats: bool, times: int) -> None:
    """The loop runs up to its maximum. Loops in older histories, which lack `repeats`, ended after one round."""
    stage = Stage(composite("loop", composite("custom", name="count"), max_iterations=3, repeats=repeats))
    assert stage.play() == Finish()
    assert stage.asked == ["loop", *["count"] * times]


def test_a_loop_of_custom_agents_without_max_iterations_has_a_limit() -> None:
    """A loop of custom agents has a limit of rounds, because it may make no model calls."""
    stage = Stage(composite("loop", composite("custom", name="count"), repeats=True), budget=5)
    step = stage.play()
    assert isinstance(step, Finish)
    assert (
        step.reason
        == "max_llm_calls: loops without max_iterations had 5 rounds without a model call, which is the limit"
    )
    assert stage.asked == ["loop", *["count"] * 5]


def test_callbacks_after_a_custom_agent_run_when_its_body_has_ended() -> None:
    """The callbacks run once, after the body has ended."""
    stage = custom_stage(ModelReply(begins=llm("a")), ModelReply(), after=True)
    assert stage.play() == Finish()
    assert stage.asked == ["story", "a", "story", "story:leave"]


def test_a_callback_that_answers_for_a_custom_agent_replaces_its_body() -> None:
    """The callback's reply replaces the body, and no sub-agent runs."""
    stage = custom_stage(
        ModelReply(skipped=True, before=CallbackResult(content={"role": "model", "parts": [{"text": "no"}]}))
    )
    assert stage.play() == Finish()
    assert (stage.asked, stage.texts()) == (["story"], ["user: go", "story: no"])


def test_a_custom_agent_survives_a_snapshot_between_its_sub_agents() -> None:
    """The next run of the workflow runs the body again when the sub-agent has ended."""
    stage = custom_stage(ModelReply(begins=llm("a")), ModelReply(begins=llm("b")), ModelReply())
    stage.ask()
    stage.answer()
    started = stage.log.state.input
    assert started
    stage.log = Snapshot.of(stage.log).restored("inv", started)
    assert stage.play() == Finish()
    assert stage.asked == ["story", "a", "story", "b", "story"]
