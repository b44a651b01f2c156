"""Toolsets. Section 10 of the semantics page."""

from collections.abc import Callable
from typing import Any

from verification.differential.scenario import Scenario, alone, calls
from waystation.tools import FunctionTool, ToolContext
from waystation.tools.base_toolset import BaseToolset


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def sub(a: int, b: int) -> int:
    """Subtract a number from another."""
    return a - b


def note(text: str, tool_context: ToolContext) -> str:
    """Note a text."""
    tool_context.state["noted"] = text
    return "ok"


class Calculator(BaseToolset):
    """Adds and subtracts."""

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        tools = [FunctionTool(add), FunctionTool(sub), FunctionTool(note)]
        return [tool for tool in tools if self._is_tool_selected(tool, readonly_context)]


class ByState(BaseToolset):
    """Gives `add` when the state says so from the start."""

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        allowed = bool(readonly_context and readonly_context.state.get("may_add"))
        return [FunctionTool(add)] if allowed else []


class Broken(BaseToolset):
    """Raises."""

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        raise LookupError("no tool")


def _only_add(tool: Any, readonly_context: Any = None) -> bool:
    return bool(tool.name == "add")


def _with(name: str, *replies: Any, tools: Callable[[], list[Any]], **fields: Any) -> Scenario:
    return alone(f"toolset_{name}", *replies, tools=tools, **fields)


SUM = {"a": 1, "b": 2}

TOOLSETS: list[Scenario] = [
    _with("called", calls(("add", SUM)), "done", tools=lambda: [Calculator()]),
    _with("prefixed", calls(("calc_add", SUM)), "done", tools=lambda: [Calculator(tool_name_prefix="calc")]),
    _with(
        "prefixed_and_called_without",
        calls(("add", SUM)),
        "done",
        tools=lambda: [Calculator(tool_name_prefix="calc")],
    ),
    _with("filtered_by_names", calls(("sub", SUM)), "done", tools=lambda: [Calculator(tool_filter=["sub"])]),
    _with("filtered_by_predicate", calls(("add", SUM)), "done", tools=lambda: [Calculator(tool_filter=_only_add)]),
    _with("filtered_out", calls(("sub", SUM)), "done", tools=lambda: [Calculator(tool_filter=["add"])]),
    _with(
        "filtered_by_names_without_prefix",
        calls(("calc_add", SUM)),
        "done",
        tools=lambda: [Calculator(tool_filter=["add"], tool_name_prefix="calc")],
    ),
    _with(
        "between_tools", calls(("note", {"text": "x"})), "done", tools=lambda: [sub, Calculator(tool_filter=["note"])]
    ),
    _with("writes_state", calls(("note", {"text": "x"}), ("add", SUM)), "done", tools=lambda: [Calculator()]),
    _with("by_state", calls(("add", SUM)), "done", tools=lambda: [ByState(), sub], state={"may_add": True}),
    _with("by_state_that_is_not", calls(("add", SUM)), "done", tools=lambda: [ByState(), sub]),
    _with("broken", calls(("add", SUM)), "done", tools=lambda: [Broken(), Calculator()]),
    _with(
        "two",
        calls(("a_add", SUM), ("b_sub", SUM)),
        "done",
        tools=lambda: [Calculator(tool_name_prefix="a"), Calculator(tool_name_prefix="b")],
    ),
]
