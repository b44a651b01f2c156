"""Agents that agents call like tools. Section 4 of the semantics page."""

from collections.abc import Callable
from typing import Any

from verification.differential.scenario import Cast, Json, Problem, Reply, Scenario, calls, shows
from waystation.agents import LlmAgent
from waystation.tools import AgentTool, ToolContext


def note(key: str, value: int, tool_context: ToolContext) -> str:
    """Note something."""
    tool_context.state[key] = value
    return "noted"


def read(key: str, tool_context: ToolContext) -> Any:
    """Read what was noted."""
    return tool_context.state.get(key, "-")


def fail() -> None:
    """Fail."""
    raise ValueError("no")


def skip(tool_context: ToolContext) -> Json:
    """Say all there is to say."""
    tool_context.actions.skip_summarization = True
    return {"said": 1}


def _pair(**options: Any) -> Callable[[Cast], Any]:
    child_options = options.pop("child", {})

    def build(cast: Cast) -> Any:
        child = LlmAgent(
            name="child",
            description="A child.",
            model=cast.model("child"),
            tools=[note, read, fail, skip],
            **child_options,
        )
        return LlmAgent(name=cast.name, model=cast.model("main"), tools=[AgentTool(child, **options), note, read])

    return build


def _three(cast: Cast) -> Any:
    inner = LlmAgent(name="inner", model=cast.model("inner"), tools=[note])
    child = LlmAgent(name="child", description="Between.", model=cast.model("child"), tools=[AgentTool(agent=inner)])
    return LlmAgent(name=cast.name, model=cast.model("main"), tools=[AgentTool(agent=child)])


def _scenario(name: str, child: list[Reply], *replies: Reply, options: Json | None = None, **fields: Any) -> Scenario:
    script = {"main": replies or (ASK, "done"), "child": child}
    return Scenario(name=f"agent_tool_{name}", agent=_pair(**(options or {})), script=script, **fields)


ASK = calls(("child", {"request": "do it"}))
ASK_TWICE = calls(("child", {"request": "one"}), ("child", {"request": "two"}))

TABLE: list[Scenario] = [
    _scenario("answers", ["child says"]),
    _scenario("answers_nothing", [{"role": "model", "parts": [{"text": ""}]}]),
    _scenario(
        "answers_in_parts",
        [{"role": "model", "parts": [{"text": "a"}, {"text": "hm", "thought": True}, {"text": "b"}]}],
    ),
    _scenario("uses_a_tool", [calls(("note", {"key": "a", "value": 1})), "noted"]),
    _scenario("sees_the_state", [calls(("read", {"key": "a"})), "read"], state={"a": 7, "user:b": 1}),
    _scenario(
        "hands_state_back",
        [calls(("note", {"key": "a", "value": 1}), ("note", {"key": "user:b", "value": 2})), "noted"],
        ASK,
        calls(("read", {"key": "a"})),
        "done",
        state={"a": 0},
    ),
    _scenario(
        "does_not_inherit_temporary_state",
        [calls(("read", {"key": "temp:a"})), "read"],
        calls(("note", {"key": "temp:a", "value": 1})),
        ASK,
        "done",
        deviations=shows(temporary_state_in_events={2: {"temp:a": 1}}),
    ),
    _scenario(
        "keeps_its_temporary_state",
        [calls(("note", {"key": "temp:a", "value": 1})), "noted"],
        ASK,
        calls(("read", {"key": "temp:a"})),
        "done",
    ),
    _scenario("without_a_summary", ["child says"], ASK, options={"skip_summarization": True}),
    _scenario("without_a_summary_and_without_text", [calls(("skip", {}))], ASK, options={"skip_summarization": True}),
    _scenario("skips_its_own_summary", [calls(("skip", {}))]),
    _scenario("called_without_request", ["child says"], calls(("child", {"b": 2, "a": [1]})), "done"),
    _scenario("blocked", [Problem("SAFETY", "It was blocked.")]),
    _scenario("fails", [calls(("fail", {}))], ASK, "done", deviations=shows("tool-errors-are-told")),
    _scenario("instructed", ["child says"], options={"child": {"instruction": "Be brief."}}),
    _scenario(
        "beside_a_tool", ["child says"], calls(("child", {"request": "x"}), ("note", {"key": "a", "value": 1})), "done"
    ),
    Scenario(
        name="agent_tool_three_deep",
        agent=_three,
        script={
            "main": (ASK, "done"),
            "child": (calls(("inner", {"request": "deeper"})), "child says"),
            "inner": (calls(("note", {"key": "a", "value": 1})), "inner says"),
        },
    ),
]
