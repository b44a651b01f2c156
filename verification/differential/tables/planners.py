"""Planners, which change requests and replies."""

from typing import Any

from google.genai import types

from verification.differential.scenario import Json, Scenario, alone, calls
from waystation.planners import BasePlanner, BuiltInPlanner


def look() -> str:
    """Look."""
    return "seen"


class Tagging(BasePlanner):  # type: ignore[misc, unused-ignore]  # without types in the other environment
    """Asks for tags, shows text before a tag as a thought, and drops calls after the first."""

    def build_planning_instruction(self, readonly_context: Any, llm_request: Any) -> str | None:
        """Return an instruction that names the user and the number of contents."""
        contents = len(llm_request.contents)
        return f"Plan for {readonly_context.state['customer']}: {contents}." if contents < 5 else None

    def process_planning_response(self, callback_context: Any, response_parts: list[Any]) -> list[Any] | None:
        """Return the parts of the plan and the answer."""
        parts: list[Any] = []
        for part in response_parts:
            plan, tag, answer = (part.text or "").partition("ANSWER")
            if part.function_call:
                return [*parts, part]
            parts += [types.Part(text=plan, thought=True), types.Part(text=answer)] if tag else [part]
        return parts


class Silent(BuiltInPlanner):  # type: ignore[misc, unused-ignore]
    """Drops everything, which has no effect."""

    def process_planning_response(self, callback_context: Any, response_parts: list[Any]) -> list[Any] | None:
        """Return no parts."""
        return []


def _planned(name: str, planner: Any, *replies: Any, **fields: Any) -> Scenario:
    state: Json = {"customer": "Ann"}
    return alone(f"planner_{name}", *replies, tools=lambda: [look], agent={"planner": planner}, state=state, **fields)


_THINKING = types.ThinkingConfig(include_thoughts=True, thinking_budget=64)

TABLE: list[Scenario] = [
    _planned("thinking", BuiltInPlanner(thinking_config=_THINKING), calls(("look", {})), "done"),
    _planned("thinking_and_dropping_all", Silent(thinking_config=_THINKING), calls(("look", {})), "done"),
    _planned("tagging", Tagging(), "I look. ANSWER Seen."),
    _planned("tagging_calls", Tagging(), calls(("look", {}), ("look", {}), text="I look. ANSWER Wait."), "It is seen."),
    _planned("tagging_with_thoughts", Tagging(), calls(("look", {}), text="Why ANSWER so"), "I know. ANSWER Seen."),
]
