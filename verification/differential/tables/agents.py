"""Agents around agents: sequences, loops, parallel branches, transfer. Section 9 of the semantics page."""

from typing import Any

from google.genai import types

from verification.differential.scenario import Cast, Json, Reply, Scenario, approves, calls, responds, shows
from waystation.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from waystation.tools import FunctionTool, LongRunningFunctionTool, ToolContext


def note(key: str, value: int, tool_context: ToolContext) -> str:
    """Note something."""
    tool_context.state[key] = value
    return "noted"


def go_to(agent: str, tool_context: ToolContext) -> Json:
    """Hand over."""
    tool_context.actions.transfer_to_agent = agent
    return {"to": agent}


def stop(tool_context: ToolContext) -> str:
    """Stop the loop."""
    tool_context.actions.escalate = True
    return "stopped"


def ask(purpose: str) -> None:
    """Ask somebody."""


def _llm(cast: Cast, name: str, **settings: Any) -> Any:
    settings.setdefault("description", f"Agent {name}.")
    return LlmAgent(name=name, model=cast.model(name), **settings)


def _sequence(cast: Cast) -> Any:
    first = _llm(cast, "first", tools=[note])
    return SequentialAgent(name=cast.name, sub_agents=[first, _llm(cast, "second", tools=[note])])


def _sequence_with_a_question(cast: Cast) -> Any:
    first = _llm(cast, "first", tools=[LongRunningFunctionTool(ask)])
    return SequentialAgent(name=cast.name, sub_agents=[first, _llm(cast, "second")])


def _loop(cast: Cast, **settings: Any) -> Any:
    first, second = _llm(cast, "first", tools=[note]), _llm(cast, "second", tools=[stop])
    return LoopAgent(name=cast.name, sub_agents=[first, second], **settings)


def _parallel(cast: Cast) -> Any:
    return ParallelAgent(
        name=cast.name, sub_agents=[_llm(cast, "left", tools=[note]), _llm(cast, "right", tools=[note])]
    )


def _nested(cast: Cast) -> Any:
    both = ParallelAgent(name="both", sub_agents=[_llm(cast, "left"), _llm(cast, "right")])
    return SequentialAgent(name=cast.name, sub_agents=[_llm(cast, "before"), both, _llm(cast, "after")])


def _sequence_in_a_loop(cast: Cast) -> Any:
    inner = SequentialAgent(name="inner", sub_agents=[_llm(cast, "first"), _llm(cast, "second", tools=[stop])])
    return LoopAgent(name=cast.name, sub_agents=[inner], max_iterations=3)


def _team(cast: Cast, helper: Json | None = None, other: Json | None = None) -> Any:
    below = [_llm(cast, "helper", tools=[note], **(helper or {})), _llm(cast, "other", **(other or {}))]
    return LlmAgent(name=cast.name, model=cast.model("main"), tools=[go_to], sub_agents=below)


def _sequence_below(cast: Cast) -> Any:
    steps = SequentialAgent(
        name="steps", description="Two steps.", sub_agents=[_llm(cast, "first"), _llm(cast, "second")]
    )
    return LlmAgent(name=cast.name, model=cast.model("main"), sub_agents=[steps])


QUOTED = shows("quotations-are-introduced-otherwise")


def _to(name: str) -> Json:
    return calls(("transfer_to_agent", {"agent_name": name}))


def _tree(name: str, agent: Any, script: dict[str, list[Reply]], **fields: Any) -> Scenario:
    if fields.pop("quoted", True):
        fields["deviations"] = {**QUOTED, **fields.get("deviations", {})}
    return Scenario(name=name, agent=agent, script=script, **fields)


def _transfer(name: str, main: list[Reply], helper: list[Reply], other: list[Reply], **fields: Any) -> Scenario:
    agent = fields.pop("agent", _team)
    return _tree(f"transfer_{name}", agent, {"main": main, "helper": helper, "other": other}, **fields)


NOTE = calls(("note", {"key": "a", "value": 1}))

WORKFLOWS: list[Scenario] = [
    _tree("sequence", _sequence, {"first": ["one"], "second": ["two"]}),
    _tree("sequence_with_tools", _sequence, {"first": [NOTE, "one"], "second": [NOTE, "two"]}),
    _tree(
        "loop_of_two_rounds", lambda cast: _loop(cast, max_iterations=2), {"first": ["1", "3"], "second": ["2", "4"]}
    ),
    _tree("loop_with_exit", _loop, {"first": ["1", "3"], "second": ["2", calls(("stop", {})), "over"]}),
    _tree("loop_stopped_by_a_tool", _loop, {"first": ["1"], "second": [calls(("stop", {})), "over"]}),
    _tree(
        "loop_of_a_sequence", _sequence_in_a_loop, {"first": ["1", "3"], "second": ["2", calls(("stop", {})), "over"]}
    ),
    _tree("parallel", _parallel, {"left": ["l"], "right": ["r"]}, parallel=True, quoted=False),
    _tree(
        "parallel_with_tools",
        _parallel,
        {"left": [NOTE, "l"], "right": [calls(("note", {"key": "b", "value": 2})), "r"]},
        parallel=True,
        quoted=False,
    ),
    _tree(
        "sequence_around_parallel",
        _nested,
        {"before": ["b"], "left": ["l"], "right": ["r"], "after": ["a"]},
        parallel=True,
    ),
    _tree(
        "sequence_waits",
        _sequence_with_a_question,
        {"first": [calls(("ask", {"purpose": "p"})), "one"], "second": ["two"]},
        answers=[responds({"status": "done"})],
        deviations={"one-rule-for-batches": None, "long-running-note": {"ask": "Ask somebody."}},
    ),
]

NOBODY = {"error": "Transfer target agent 'nobody' not found.", "error_type": "ValueError"}

TRANSFERS: list[Scenario] = [
    _transfer("not_used", ["hello"], [], [], quoted=False),
    _transfer("to_a_child", [_to("helper")], ["I help."], []),
    _transfer("to_a_child_with_tools", [_to("helper")], [NOTE, "I helped."], []),
    _transfer("to_a_peer", [_to("helper")], [_to("other")], ["I am other."]),
    _transfer("and_back", [_to("helper"), "I am back."], [_to("transfer_and_back")], []),
    _transfer("by_a_tool", [calls(("go_to", {"agent": "other"}))], [], ["I am other."]),
    _transfer(
        "beside_a_tool",
        [calls(("go_to", {"agent": "helper"}), ("transfer_to_agent", {"agent_name": "other"}))],
        [],
        ["I am other."],
    ),
    _transfer(
        "without_peers",
        [_to("helper")],
        ["I help."],
        [],
        agent=lambda cast: _team(cast, helper={"disallow_transfer_to_peers": True}),
    ),
    _transfer(
        "without_parent",
        [_to("helper")],
        ["I help."],
        [],
        agent=lambda cast: _team(cast, helper={"disallow_transfer_to_parent": True}),
    ),
    _transfer(
        "without_anybody",
        [_to("helper")],
        ["I help."],
        [],
        agent=lambda cast: _team(
            cast, helper={"disallow_transfer_to_parent": True, "disallow_transfer_to_peers": True}
        ),
    ),
    _transfer(
        "to_nobody",
        [_to("nobody"), "I stay."],
        [],
        [],
        quoted=False,
        deviations=shows(transfers_to_nobody_are_told={"responses": {"transfer_to_agent": NOBODY}, "reply": "I stay."}),
    ),
    _transfer(
        "to_nobody_by_a_tool",
        [calls(("go_to", {"agent": "nobody"})), "I stay."],
        [],
        [],
        quoted=False,
        deviations=shows(
            transfers_to_nobody_are_told={
                "responses": {"go_to": {**NOBODY, "result": {"to": "nobody"}}},
                "reply": "I stay.",
            }
        ),
    ),
    _tree("transfer_to_a_sequence", _sequence_below, {"main": [_to("steps")], "first": ["one"], "second": ["two"]}),
]


def _steps(cast: Cast, first: Json, second: Json) -> Any:
    return SequentialAgent(name=cast.name, sub_agents=[_llm(cast, "first", **first), _llm(cast, "second", **second)])


def _step(name: str, first: Json, second: Json, **fields: Any) -> Scenario:
    script: dict[str, list[Reply]] = {"first": ["one"], "second": ["two"]}
    return _tree(f"steps_{name}", lambda cast: _steps(cast, first, second), script, **fields)


def _answers(callback_context: Any) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=f"for {callback_context.agent_name}")])


def _notes(callback_context: Any) -> None:
    callback_context.state["trace"] = [*callback_context.state.get("trace", []), callback_context.agent_name]


def _around(cast: Cast) -> Any:
    below = [_llm(cast, "first", before_agent_callback=_notes, after_agent_callback=_notes), _llm(cast, "second")]
    return SequentialAgent(name=cast.name, sub_agents=below, before_agent_callback=_notes, after_agent_callback=_notes)


def _instead(cast: Cast) -> Any:
    below = [_llm(cast, "first"), _llm(cast, "second")]
    return SequentialAgent(name=cast.name, sub_agents=below, before_agent_callback=_answers)


STEPS: list[Scenario] = [
    _step(
        "by_output_key",
        {"output_key": "draft"},
        {"instruction": "Mend {draft}.", "include_contents": "none"},
    ),
    _step("without_contents", {}, {"include_contents": "none"}),
    _step("by_template", {"output_key": "draft"}, {"instruction": "Mend {draft}."}),
    _step("spoken_for", {"before_agent_callback": _answers}, {}),
    _step("spoken_for_at_last", {}, {"before_agent_callback": _answers}, quoted=False),
    _step("spoken_after", {"after_agent_callback": _answers}, {}),
    _tree("steps_with_callbacks", _around, {"first": ["one"], "second": ["two"]}),
    _tree("steps_instead_of_which", _instead, {"first": [], "second": []}, quoted=False),
]


ASK = calls(("ask", {"purpose": "p"}))
PAY = calls(("pay", {"amount": 5}))
NOTED = {"ask": "Ask somebody."}


def pay(amount: int) -> Json:
    """Pay."""
    return {"paid": amount}


def _team_that_asks(cast: Cast) -> Any:
    helper = _llm(cast, "helper", tools=[LongRunningFunctionTool(ask), FunctionTool(pay, require_confirmation=True)])
    return LlmAgent(name=cast.name, model=cast.model("main"), sub_agents=[helper])


def _sequence_that_pays(cast: Cast) -> Any:
    first = _llm(cast, "first", tools=[FunctionTool(pay, require_confirmation=True)])
    return SequentialAgent(name=cast.name, sub_agents=[first, _llm(cast, "second")])


def _loop_that_asks(cast: Cast) -> Any:
    first = _llm(cast, "first", tools=[LongRunningFunctionTool(ask)])
    return LoopAgent(name=cast.name, sub_agents=[first, _llm(cast, "second")], max_iterations=2)


WAITING: list[Scenario] = [
    _tree(
        "transfer_then_question",
        _team_that_asks,
        {"main": [_to("helper")], "helper": [ASK, "done"]},
        answers=[responds({"status": "done"})],
        deviations={"long-running-note": NOTED},
    ),
    _tree(
        "transfer_then_confirmation",
        _team_that_asks,
        {"main": [_to("helper")], "helper": [PAY, "done"]},
        answers=[approves()],
        deviations={"long-running-note": NOTED, "no-placeholder": None},
    ),
    _tree(
        "sequence_confirmed",
        _sequence_that_pays,
        {"first": [PAY, "one"], "second": ["two"]},
        answers=[approves()],
        deviations=shows("one-rule-for-batches", "no-placeholder"),
    ),
    _tree(
        "loop_waits_twice",
        _loop_that_asks,
        {"first": [ASK, "one", ASK, "three"], "second": ["two", "four"]},
        answers=[responds({"n": 1}), responds({"n": 2})],
        deviations={"one-rule-for-batches": None, "long-running-note": NOTED},
    ),
]
