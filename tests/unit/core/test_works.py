"""Which agents of a tree work, and when."""

from typing import Any

import pytest

from tests.unit.core.stage import Stage, call, composite, llm, text, transfer
from tests.unit.core.story import answered
from waystation.core import (
    AgentSpec,
    BodyEvent,
    CallbackResult,
    CallReturned,
    CancelRequested,
    Confirmation,
    Ended,
    EventActions,
    Failure,
    Finish,
    ModelLost,
    ModelReply,
    Perform,
    Snapshot,
    ToolOutcome,
    Wait,
    next_step,
    parse_ref,
)

ESCALATE = EventActions(escalate=True)


def test_a_sequence_runs_its_agents_one_after_the_other() -> None:
    """The root is entered once, to learn what it is."""
    stage = Stage(composite("sequential", llm("a"), llm("b")))
    assert stage.play() == Finish()
    assert stage.asked == ["sequential", "a", "b"]


def test_the_next_of_a_sequence_waits_until_the_one_before_has_its_answer() -> None:
    """ADK goes on without it, or never; a person's answer is part of an agent's work."""
    waits = call("fc-1-1", kind="long_running")
    stage = Stage(composite("sequential", llm("a"), llm("b")), a=[waits, "thanks"])
    stage.play()
    stage.log.append(parse_ref("fc-1-1"), 0, CallReturned(ToolOutcome(function_call_id="fc-1-1", final=False)))
    assert stage.play() == Wait()
    assert stage.asked == ["sequential", "a"]
    stage.log.append(parse_ref("s1"), 0, answered("fc-1-1"))
    assert stage.play() == Finish()
    assert stage.asked == ["sequential", "a", "a", "b"]


def test_two_waiting_calls_of_one_agent_in_a_sequence_are_both_waited_for() -> None:
    """The case in which ADK loses the invocation; see adk-semantics 3.5."""
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
def test_a_loop_runs_as_often_as_it_may(limit: int, times: int) -> None:
    """Zero is never."""
    stage = Stage(composite("loop", llm("a"), llm("b"), max_iterations=limit))
    assert stage.play() == Finish()
    assert stage.asked == ["loop", *["a", "b"] * times]


def test_escalation_ends_a_loop_after_the_agents_own_turn() -> None:
    """The agent that escalates still says its last word; those behind it do not run."""
    stage = Stage(composite("loop", llm("a"), llm("b")), a=["one", call("fc-3-1"), "enough"])
    assert isinstance(stage.play(), Perform)
    stage.perform(escalate=True)
    assert stage.play() == Finish()
    assert stage.asked == ["loop", "a", "b", "a", "a"]
    assert stage.said()[-1] == "a: enough"


def test_escalation_ends_outer_loops_too() -> None:
    """As in ADK; see adk-semantics 9.2."""
    inner = composite("loop", llm("a"), name="inner")
    stage = Stage(composite("loop", inner, llm("b"), name="outer"), a=[text("stop", actions=ESCALATE)])
    assert stage.play() == Finish()
    assert stage.asked == ["outer", "a"]


def test_a_sequence_does_not_mind_escalation() -> None:
    """The agents behind it still run."""
    stage = Stage(composite("sequential", llm("a"), llm("b")), a=[text("stop", actions=ESCALATE)])
    assert stage.play() == Finish()
    assert stage.asked == ["sequential", "a", "b"]


@pytest.mark.parametrize("children", [(), (composite("sequential"),), (composite("loop", max_iterations=0),)])
def test_a_loop_in_which_nobody_can_speak_ends(children: tuple[AgentSpec, ...]) -> None:
    """It has no limit, and nothing in it could ever escalate."""
    stage = Stage(composite("loop", *children))
    assert stage.play() == Finish()


def test_parallel_agents_work_side_by_side_on_branches_of_their_own() -> None:
    """All models are asked before any has answered."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"))
    stage.ask()
    stage.answer()
    stage.ask()
    assert stage.asked == ["pa", "a@pa.a", "b@pa.b"]
    assert len(stage.flying) == 2
    assert stage.play() == Finish()
    assert [event.branch for event in stage.log.state.events] == [None, "pa.a", "pa.b"]


def test_one_parallel_agent_waits_while_the_other_goes_on() -> None:
    """A pause belongs to the branch on which it happens."""
    shape = composite("sequential", composite("parallel", llm("a"), llm("b"), name="pa"), llm("c"))
    stage = Stage(shape, a=[call("fc-2-1", confirmation=Confirmation(hint="?"))])
    assert stage.play() == Wait()
    assert stage.asked == ["sequential", "a@pa.a", "b@pa.b"]
    assert [call.function_call_id for call in stage.log.state.pending()] == ["fc-2-1"]


def test_a_stopped_agent_hands_over_to_nobody() -> None:
    """It has a transfer in a batch of which another call still runs when its sibling escalates."""
    handing, running = transfer("fc-2-1", llm("helper")), call("fc-2-2")
    assert handing.content
    assert running.content
    both = ModelReply(
        content={"role": "model", "parts": [*handing.content["parts"], *running.content["parts"]]},
        calls=(*handing.calls, *running.calls),
    )
    stage = Stage(composite("parallel", llm("a"), llm("b")), a=[call("fc-1-1")], b=[both])
    stage.ask()
    stage.answer()  # the parallel agent is known
    stage.ask()
    stage.answer()
    stage.answer()
    escalated = ToolOutcome(function_call_id="fc-1-1", response={}, actions=ESCALATE)
    stage.log.append(parse_ref("fc-1-1"), 0, CallReturned(escalated))
    assert [work.agent for work in stage.log.state.runs.at_work()] == ["parallel", "a"]


def test_a_direct_child_that_escalates_stops_its_siblings() -> None:
    """What is under way for them is no longer wanted, and their calls are closed."""
    stage = Stage(
        composite("parallel", llm("a"), llm("b"), llm("c"), name="pa"),
        a=[text("I have it", actions=ESCALATE)],
        b=[call("fc-2-1")],
    )
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(3)  # b calls its tool
    stage.answer(2)  # a escalates; the model of c is still thinking
    assert next_step(stage.log) == Finish()
    assert stage.log.state.runs.unwanted == {"fc-2-1", "m4"}
    assert stage.log.state.calls["fc-2-1"].closed


def test_what_a_stopped_agent_still_says_is_not_heard() -> None:
    """Its tokens count all the same."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"), a=[text("mine", actions=ESCALATE)])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.answer(3)
    assert stage.said() == ["user: go", "a: mine"]


def test_a_stopped_agent_whose_model_was_lost_fails_nothing() -> None:
    """Being cancelled is how a model activity of a stopped agent ends."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"), a=[text("mine", actions=ESCALATE)])
    stage.ask()
    stage.answer()
    stage.ask()
    stage.answer(2)
    stage.log.append(parse_ref("m3"), 0, ModelLost(3, Failure(kind="cancelled")))
    assert next_step(stage.log) == Finish()


def test_a_lost_model_on_one_branch_fails_the_invocation() -> None:
    """As an exception in ADK's group."""
    stage = Stage(composite("parallel", llm("a"), llm("b"), name="pa"))
    stage.ask()
    stage.answer()
    stage.ask()
    stage.log.append(parse_ref("m3"), 0, ModelLost(3, Failure(kind="error", error_type="ModelFailed", message="no")))
    assert type(next_step(stage.log)).__name__ == "Fail"


def test_an_agent_hands_the_conversation_over() -> None:
    """The other answers; the first is not asked again."""
    stage = Stage(llm("a"), a=[transfer("fc-1", llm("b"))], b=["here I am"])
    assert stage.play() == Finish()
    assert stage.asked == ["a", "b"]
    assert stage.log.state.result().text == "here I am"


def test_an_agent_may_hand_over_to_a_sequence() -> None:
    """The shape comes with the transfer."""
    stage = Stage(llm("a"), a=[transfer("fc-1", composite("sequential", llm("b"), llm("c")))])
    assert stage.play() == Finish()
    assert stage.asked == ["a", "b", "c"]


def test_a_tool_may_hand_over_while_its_siblings_finish() -> None:
    """The transfer takes place when the batch is whole."""
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
    """Also after it has handed the conversation over; see adk-semantics 3.5."""
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


def test_an_answer_that_comes_while_its_agent_hands_over_is_not_lost_to_it() -> None:
    """It is told of the answer beside the one that takes over."""
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
    assert "a: thanks" in stage.said()


def test_the_users_next_message_goes_to_the_last_agent_that_may_keep_it() -> None:
    """Unless that is the agent which was started."""
    there = Stage(llm("a"), a=[transfer("fc-1", llm("b"))])
    there.play()
    assert there.log.state.result().next_agent == "b"
    bound = Stage(llm("a"), a=[transfer("fc-1", llm("b", keeps_turn=False))])
    bound.play()
    assert bound.log.state.result().next_agent is None


def test_callbacks_on_leaving_run_when_nothing_is_left_to_do() -> None:
    """Those of the parts before those of the whole."""
    stage = Stage(composite("sequential", llm("a", after=True), llm("b"), after=True, name="sq"))
    assert stage.play() == Finish()
    assert stage.asked == ["sq", "a", "a:leave", "b", "sq:leave"]
    assert stage.said() == ["user: go", "a: done", "a: a was here", "b: done", "sq: sq was here"]


def test_a_composite_with_callbacks_on_entering_is_entered_by_an_activity() -> None:
    """One without them is not: an activity has its price."""
    inner = composite("sequential", llm("a"), before=True, name="inner")
    stage = Stage(composite("sequential", inner, name="outer"))
    assert stage.play() == Finish()
    assert stage.asked == ["outer", "inner", "a"]


def test_callbacks_may_speak_for_an_agent() -> None:
    """Its model is then not asked, nor are those behind it in its subtree."""
    spoken = CallbackResult(content={"role": "model", "parts": [{"text": "closed today"}]})
    stage = Stage(composite("sequential", llm("a"), llm("b")), a=[ModelReply(before=spoken, skipped=True)])
    assert stage.play() == Finish()
    assert stage.said() == ["user: go", "a: closed today", "b: done"]


def test_a_closing_word_follows_the_responses_and_ends_the_agent() -> None:
    """The model is not called again."""
    closing = CallbackResult(
        content={"role": "model", "parts": [{"text": '{"a": 1}'}]}, actions=EventActions(state_delta={"k": 1})
    )
    answer = call("fc-1", "set_model_response", kind="answered", response={"result": "ok"})
    stage = Stage(llm("a"), a=[answer.model_copy(update={"closing": closing, "output": {"a": 1}})])
    assert stage.play() == Finish()
    result = stage.log.state.result()
    assert (result.text, result.output, result.state_delta) == ('{"a": 1}', {"a": 1}, {"k": 1})


def test_a_plugin_may_speak_for_the_whole_invocation() -> None:
    """Nothing else runs."""
    spoken = CallbackResult(content={"role": "model", "parts": [{"text": "not now"}]})
    stage = Stage(llm("a"), a=[ModelReply(before=spoken, ends_invocation=True, skipped=True)])
    assert stage.play() == Finish()
    assert stage.log.state.result().text == "not now"


def test_the_budget_counts_model_calls_of_all_agents_and_nothing_else() -> None:
    """Entering a composite and callbacks are no model calls."""
    stage = Stage(composite("loop", llm("a", after=True)), budget=3)
    step = stage.play()
    assert isinstance(step, Finish)
    assert "limit of 3" in (step.reason or "")
    assert [name for name in stage.asked if name == "a"] == ["a"] * 3


def test_calls_of_agents_that_work_side_by_side_are_closed_when_the_invocation_ends() -> None:
    """Whichever branch they are on."""
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


def _said(line: str, **fields: Any) -> BodyEvent:
    return BodyEvent(content={"role": "model", "parts": [{"text": line}]}, **fields)


def _story(*replies: ModelReply, **fields: Any) -> Stage:
    """A custom agent whose body gives these replies, in order; its sub-agents are `a` and `b`."""
    shape = composite("custom", llm("a"), llm("b"), name="story", **fields)
    return Stage(shape, story=[replies[0].model_copy(update={"shape": shape}), *replies[1:]])


def test_a_body_decides_after_each_sub_agent_which_one_runs_next() -> None:
    """The body is asked again when the sub-agent is over, and the agent ends when the body names no further one."""
    stage = _story(ModelReply(begins=llm("b")), ModelReply(begins=llm("a")), ModelReply(begins=llm("b")), ModelReply())
    assert stage.play() == Finish()
    assert stage.asked == ["story", "b", "story", "a", "story", "b", "story"]


def test_a_body_is_not_asked_while_its_sub_agent_waits() -> None:
    """A pending call is part of the sub-agent's work."""
    stage = _story(ModelReply(begins=llm("a")), ModelReply())
    stage.says("a", call("fc-1-1", kind="long_running"), "thanks")
    stage.play()
    stage.log.append(parse_ref("fc-1-1"), 0, CallReturned(ToolOutcome(function_call_id="fc-1-1", final=False)))
    assert stage.play() == Wait()
    assert stage.asked == ["story", "a"]
    stage.log.append(parse_ref("s1"), 0, answered("fc-1-1"))
    assert stage.play() == Finish()
    assert stage.asked == ["story", "a", "a", "story"]


def test_what_a_body_yields_is_recorded_where_it_was_yielded() -> None:
    """Its events come between those of its sub-agents, and their state is the session's."""
    counted = EventActions(state_delta={"round": 1})
    stage = _story(
        ModelReply(yielded=(_said("begin", actions=counted),), begins=llm("a")),
        ModelReply(yielded=(_said("end", author="narrator"),)),
    )
    assert stage.play() == Finish()
    assert stage.said() == ["user: go", "story: begin", "a: done", "narrator: end"]
    assert stage.log.state.session.values == {"round": 1}


def test_the_segments_of_a_body_say_where_its_events_are() -> None:
    """Each has the numbers of events when it began, before its first and after its last event, and its sub-agent."""
    stage = _story(
        ModelReply(yielded=(_said("one"), _said("two")), begins=llm("a")), ModelReply(begins=llm("b")), ModelReply()
    )
    stage.play()
    assert stage.log.state.runs[0].segments == [(1, 1, 3, 1), (4, 4, 4, 2)]


def test_a_custom_agent_in_a_loop_can_end_the_loop() -> None:
    """An event of its body escalates."""
    check = composite("custom", name="check")
    stage = Stage(
        composite("loop", llm("a"), check),
        check=[ModelReply(), ModelReply(yielded=(_said("stop", actions=ESCALATE),))],
    )
    assert stage.play() == Finish()
    assert stage.asked == ["loop", "a", "check", "a", "check"]


@pytest.mark.parametrize(("repeats", "times"), [(True, 3), (False, 1)])
def test_a_loop_of_custom_agents_runs_as_often_as_it_may(repeats: bool, times: int) -> None:
    """Histories of older versions did not record `repeats`. In them, such a loop ended after one round."""
    stage = Stage(composite("loop", composite("custom", name="count"), max_iterations=3, repeats=repeats))
    assert stage.play() == Finish()
    assert stage.asked == ["loop", *["count"] * times]


def test_a_loop_of_custom_agents_without_max_iterations_has_a_limit() -> None:
    """No model call would count against the budget, so the rounds do."""
    stage = Stage(composite("loop", composite("custom", name="count"), repeats=True), budget=5)
    step = stage.play()
    assert isinstance(step, Finish)
    assert (
        step.reason
        == "max_llm_calls: loops without max_iterations had 5 rounds without a model call, which is the limit"
    )
    assert stage.asked == ["loop", *["count"] * 5]


def test_callbacks_after_a_custom_agent_run_when_its_body_has_ended() -> None:
    """They run once."""
    stage = _story(ModelReply(begins=llm("a")), ModelReply(), after=True)
    assert stage.play() == Finish()
    assert stage.asked == ["story", "a", "story", "story:leave"]


def test_a_callback_that_answers_for_a_custom_agent_replaces_its_body() -> None:
    """No sub-agent runs."""
    stage = _story(
        ModelReply(skipped=True, before=CallbackResult(content={"role": "model", "parts": [{"text": "no"}]}))
    )
    assert stage.play() == Finish()
    assert (stage.asked, stage.said()) == (["story"], ["user: go", "story: no"])


def test_a_custom_agent_survives_a_snapshot_between_its_sub_agents() -> None:
    """The next run of the workflow asks the body again when the sub-agent is over."""
    stage = _story(ModelReply(begins=llm("a")), ModelReply(begins=llm("b")), ModelReply())
    stage.ask()
    stage.answer()
    started = stage.log.state.input
    assert started
    stage.log = Snapshot.of(stage.log).restored("inv", started)
    assert stage.play() == Finish()
    assert stage.asked == ["story", "a", "story", "b", "story"]
