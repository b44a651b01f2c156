"""Toolsets: their tools, their names, and when they are listed. Source: adk-semantics 10."""

import asyncio
import inspect
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from waystation.agents import LlmAgent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.agents.toolbox import ToolsetFailure, close_toolsets, list_origins, list_tools, tools_of
from waystation.apps.registry import authoring_problems
from waystation.core.errors import StoreFailed, ToolNameTaken
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.base_toolset import BaseToolset, ToolPredicate
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

Logs = list[MutableMapping[str, Any]]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def sub(a: int, b: int) -> int:
    """Subtract one number from another."""
    return a - b


class Calculator(BaseToolset):
    """A toolset with two tools, the second only if the state has `advanced`; it counts its listings."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.asked = 0
        self.tools: list[Any] = [FunctionTool(add), FunctionTool(sub)]

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        self.asked += 1
        if readonly_context is not None and not readonly_context.state.get("advanced", True):
            return [tool for tool in self.tools[:1] if self._is_tool_selected(tool, readonly_context)]
        return [tool for tool in self.tools if self._is_tool_selected(tool, readonly_context)]


def agent(*tools: Any) -> LlmAgent:
    return LlmAgent(name="a", tools=list(tools))


def at(invocation_id: str = "i-1", **state: Any) -> ReadonlyContext:
    return ReadonlyContext(invocation_id=invocation_id, state=state)


async def names(*tools: Any, context: ReadonlyContext | None = None) -> list[str]:
    return list(await list_tools(agent(*tools), lambda: context or at()))


# Names


async def test_a_toolset_is_expanded_in_place() -> None:
    """The tools of the toolset are at its place in `tools`."""

    def first() -> None: ...

    def last() -> None: ...

    assert await names(first, Calculator(), last) == ["first", "add", "sub", "last"]


async def test_a_prefix_renames_copies() -> None:
    """Copies are declared and called with the longer name; the tools themselves keep their names."""
    calculator = Calculator(tool_name_prefix="calc")
    tools = await list_tools(agent(calculator), at)
    assert list(tools) == ["calc_add", "calc_sub"]
    assert [tool.name for tool in tools.values()] == ["calc_add", "calc_sub"]
    declared = declare(tools["calc_add"])
    assert declared is not None
    assert (declared["name"], declared["description"]) == ("calc_add", "Add two numbers.")
    assert [tool.name for tool in calculator.tools] == ["add", "sub"]
    assert declare(calculator.tools[0]) == {**declared, "name": "add"}
    assert await tools["calc_add"].run_async(args={"a": 1, "b": 2}, tool_context=ToolContext()) == 3


async def test_a_renamed_tool_reports_its_new_name() -> None:
    """The new name is in errors, because the model knows no other name."""
    tools = await list_tools(agent(Calculator(tool_name_prefix="calc")), at)
    refused = await tools["calc_add"].run_async(args={}, tool_context=ToolContext())
    assert refused["error"].startswith("Invoking `calc_add()` failed")


async def test_a_declaration_of_genai_is_renamed_without_being_changed() -> None:
    """A copy is renamed, because tools for ADK often return the same declaration each time."""
    from google.genai import types

    class Lookup(BaseTool):
        declared = types.FunctionDeclaration(name="lookup", description="Look it up.")

        def _get_declaration(self) -> Any:
            return self.declared

    calculator = Calculator(tool_name_prefix="my")
    lookup = Lookup(name="lookup", description="")
    calculator.tools = [lookup]
    tools = await list_tools(agent(calculator), at)
    assert declare(tools["my_lookup"]) == {"name": "my_lookup", "description": "Look it up."}
    assert declare(lookup) == {"name": "lookup", "description": "Look it up."}


async def test_a_tool_without_a_declaration_gets_none() -> None:
    """A tool without a declaration may still change the request."""
    calculator = Calculator(tool_name_prefix="my")
    calculator.tools = [BaseTool(name="search", description="")]
    assert declare((await list_tools(agent(calculator), at))["my_search"]) is None


async def test_a_toolset_replaces_no_tool_of_an_earlier_one(logs: Logs) -> None:
    """The tool of the first toolset counts, and the others are logged."""
    first, second = Calculator(), Calculator()
    tools = await list_tools(agent(first, second), at)
    assert list(tools) == ["add", "sub"]
    assert tools["add"] is first.tools[0]
    assert [(entry["event"], entry["tool"]) for entry in logs] == [
        ("tool_name.taken", "add"),
        ("tool_name.taken", "sub"),
    ]


@pytest.mark.parametrize("name", [None, "add"])
async def test_a_toolset_replaces_no_declared_tool(name: str | None) -> None:
    """A declared tool before or after the toolset counts, because an MCP server chooses the names of its tools."""
    protected = FunctionTool(add, require_confirmation=True)
    for tools in ([protected, Calculator()], [Calculator(), protected]):
        listed = await list_tools(agent(*tools), at, wanted=name)
        assert listed["add"] is protected
        assert listed.origins["add"] == "declared"


@pytest.mark.parametrize("name", ["exit_loop", "load_artifacts", "transfer_to_agent", "adk_run_code"])
async def test_a_toolset_cannot_use_reserved_names(name: str, logs: Logs) -> None:
    """Reserved names are left out, because readers would take them for the framework's own.

    With a prefix, they are allowed.
    """
    calculator = Calculator()
    calculator.tools = [FunctionTool(add, name=name)]
    assert await names(calculator) == []
    assert [(entry["event"], entry["tool"]) for entry in logs] == [("tool.left_out", name)]
    calculator.tool_name_prefix = "my"
    assert await names(calculator) == [f"my_{name}"]


def test_origins_are_names_in_the_definition() -> None:
    """Origins contain neither modules nor addresses, so they do not change if code moves."""

    class Elsewhere(Calculator):
        __qualname__ = __module__ = "https://user:secret@example.com"

    Elsewhere.__name__ = "Calculator"
    named = Calculator(tool_name_prefix="calc")
    named.name = "accounts"
    declared = agent(add, Calculator(), Calculator(tool_name_prefix="calc"), named, Elsewhere())
    assert list_origins(declared) == [
        "declared", "toolset:Calculator", "toolset:calc", "toolset:accounts", "toolset:Calculator#2"
    ]  # fmt: skip


def test_a_name_that_ends_with_a_number_is_not_the_origin_of_another_toolset() -> None:
    """Another toolset has another origin, because an approved call could otherwise run on it."""
    toolsets = [Calculator(), Calculator(), Calculator()]
    toolsets[0].name = "Calculator#2"
    origins = list_origins(LlmAgent(name="a", tools=[*toolsets]))
    assert origins == ["toolset:Calculator#2", "toolset:Calculator", "toolset:Calculator#3"]


async def test_two_declared_tools_with_one_name_are_a_mistake() -> None:
    """Two declared tools with one name are a mistake, which the author can correct."""
    with pytest.raises(ToolNameTaken):
        await list_tools(agent(add, FunctionTool(add), Calculator()), at)


# Filters of toolsets


@pytest.mark.parametrize("selected", [["add"], ("add",), {"add"}])
async def test_a_filter_names_tools_without_their_prefix(selected: Any) -> None:
    """A filter contains the names of the toolset's author."""
    assert await names(Calculator(tool_filter=selected, tool_name_prefix="calc")) == ["calc_add"]


async def test_a_filter_may_be_a_function_of_tool_and_context() -> None:
    """The function receives the arguments of `get_tools`."""

    def allowed(tool: BaseTool, readonly_context: ReadonlyContext | None = None) -> bool:
        return readonly_context is not None and tool.name in readonly_context.state["allowed"]

    assert isinstance(allowed, ToolPredicate)
    assert await names(Calculator(tool_filter=allowed), context=at(allowed=["sub"])) == ["sub"]


async def test_an_empty_filter_selects_everything() -> None:
    """An empty filter selects everything, as in ADK."""
    assert await names(Calculator(tool_filter=[])) == ["add", "sub"]


# Times of listing


async def test_tools_follow_the_state_within_an_invocation() -> None:
    """Each model call lists the tools again, so a tool that a call unlocks is in the next list."""
    calculator = Calculator()
    assert await names(calculator, context=at(advanced=False)) == ["add"]
    assert await names(calculator, context=at(advanced=True)) == ["add", "sub"]


async def test_a_toolset_may_be_listed_once_per_invocation() -> None:
    """With ADK's `_use_invocation_cache`, each of several simultaneous invocations lists the tools once."""
    calculator = Calculator()
    calculator._use_invocation_cache = True
    for invocation in ("i-1", "i-2", "i-1", "i-2"):
        assert await names(calculator, context=at(invocation, advanced=False)) == ["add"]
    assert await names(calculator, context=at("i-1", advanced=True)) == ["add"]
    assert calculator.asked == 2


async def test_cached_listings_are_bounded() -> None:
    """The number of cached listings is bounded, because a worker serves invocations for months."""
    calculator = Calculator()
    calculator._use_invocation_cache = True
    for number in range(1000):
        await calculator.get_tools_with_prefix(at(f"i-{number}"))
    assert len(calculator.__dict__["_tools_by_invocation"]) == 64


async def test_a_listing_without_an_invocation_is_not_cached() -> None:
    """A listing outside an invocation is not cached, because no invocation could use it."""
    calculator = Calculator()
    calculator._use_invocation_cache = True
    await calculator.get_tools_with_prefix()
    await calculator.get_tools_with_prefix()
    assert calculator.asked == 2


async def test_only_toolsets_that_may_have_a_tool_are_listed() -> None:
    """Toolsets with another prefix are skipped, and all of them if a declared tool has the name."""
    before, other, after = Calculator(), Calculator(tool_name_prefix="other"), Calculator(tool_name_prefix="calc")
    declared = agent(before, add, other, after)
    assert (await list_tools(declared, at, wanted="add"))["add"].name == "add"
    assert (before.asked, other.asked, after.asked) == (0, 0, 0)
    assert (await list_tools(declared, at, wanted="calc_sub"))["calc_sub"].name == "calc_sub"
    assert (before.asked, other.asked, after.asked) == (1, 0, 1)


# Mistakes and failures


async def test_a_subclass_may_omit_super() -> None:
    """A subclass may omit `super().__init__()`, as in ADK's guide."""

    class Forgetful(BaseToolset):
        def __init__(self) -> None:
            self.tools = [FunctionTool(add)]

        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
            return [tool for tool in self.tools if self._is_tool_selected(tool, readonly_context)]

    assert await names(Forgetful()) == ["add"]
    assert authoring_problems(agent(Forgetful())) == []


async def test_functions_and_a_sync_method_are_accepted() -> None:
    """Functions in place of tools and a sync `get_tools` are accepted."""

    class Plain(BaseToolset):
        def get_tools(self, readonly_context: ReadonlyContext | None = None) -> Any:
            return [add]

    assert await names(Plain(tool_name_prefix="my")) == ["my_add"]


async def test_a_toolset_that_raises_is_left_out(logs: Logs) -> None:
    """The place of the error is logged, but not its text, which may quote credentials."""

    class Broken(BaseToolset):
        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
            raise ConnectionError("token=hunter2")

    assert await names(Broken(), Calculator()) == ["add", "sub"]
    assert logs == [
        {
            "event": "toolset.failed",
            "log_level": "warning",
            "agent": "a",
            "toolset": "Broken",
            "error_type": "ConnectionError",
            "place": f"{__file__}:{Broken.get_tools.__code__.co_firstlineno + 1}",
        }
    ]


@pytest.mark.parametrize(
    ("error", "optional", "must_wait"),
    [
        (ConnectionError(), False, True),
        (TimeoutError(), False, True),
        (httpx2.ConnectError(""), False, True),
        (StoreFailed("s3://bucket", "no answer"), False, True),
        (ConnectionError(), True, False),
        (LookupError(), False, False),
    ],
)
async def test_only_an_unavailable_required_toolset_is_waited_for(
    error: Exception, optional: bool, must_wait: bool
) -> None:
    """Only an unavailable required toolset is waited for, because waiting does not correct mistakes of authors."""

    class Away(BaseToolset):
        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
            raise error

    failed: list[ToolsetFailure] = []
    await list_tools(agent(Away(tool_name_prefix="desk", optional=optional)), at, failed=failed)
    assert [failure.must_wait for failure in failed] == [must_wait]
    assert failed[0].description.startswith("Toolset Away with prefix 'desk' did not list its tools: ")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "`get_tools` returned None; return a list of tools."),
        ("add", "`get_tools` returned a str; return a list of tools."),
        ([add, 3], "`get_tools` returned a list that contains an int; return BaseTools and functions."),
    ],
)
async def test_an_invalid_list_of_tools_is_named(logs: Logs, value: Any, reason: str) -> None:
    """The error names the expected return value."""

    class Wrong(BaseToolset):
        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> Any:
            return value

    assert await names(Wrong(), context=at()) == []
    assert [entry["reason"] for entry in logs] == [f"Tool 'Wrong': {reason}"]


async def test_a_toolset_that_hangs_is_left_out(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging toolset is left out, because it would block the model call."""

    class Hanging(BaseToolset):
        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
            await asyncio.Event().wait()
            return []

    offered = await list_tools(agent(Hanging(), Calculator()), at, limit=timedelta(seconds=0.01))
    assert list(offered) == ["add", "sub"]
    assert [(line["event"], line["error_type"]) for line in logs] == [("toolset.failed", "TimeoutError")]


async def test_an_invalid_tool_is_left_out_alone(logs: Logs) -> None:
    """The other tools of its toolset are kept."""

    def transfer_to_agent(agent_name: str) -> None: ...

    def strange(value: inspect.Signature) -> None: ...

    calculator = Calculator()
    calculator.tools = [lambda: None, FunctionTool(strange), FunctionTool(transfer_to_agent), FunctionTool(add)]

    async def everything(readonly_context: ReadonlyContext | None = None) -> list[Any]:
        return calculator.tools

    calculator.get_tools = everything  # type: ignore[method-assign]
    assert await names(calculator) == ["add"]
    assert [entry["tool"] for entry in logs] == ["<lambda>", "strange", "transfer_to_agent"]
    assert {entry["event"] for entry in logs} == {"tool.left_out"}


async def test_an_agent_cannot_come_from_a_toolset(logs: Logs) -> None:
    """An agent from a toolset is left out unless it is declared elsewhere, because no worker would know it."""
    clerk = LlmAgent(name="clerk")
    calculator = Calculator()
    calculator.tools = [AgentTool(clerk)]
    assert await names(calculator) == []
    assert logs[0]["problem"] == "a toolset cannot contain an AgentTool; add the AgentTool to the agent's `tools`."
    assert await names(calculator, AgentTool(clerk)) == ["clerk"]


def test_static_tools_are_known_without_listing_toolsets() -> None:
    """Static tools are known without listing, which may need a network."""
    calculator = Calculator()
    assert list(tools_of(agent(add, calculator))) == ["add"]
    assert calculator.asked == 0


def test_mistakes_in_a_declared_toolset_are_reported() -> None:
    """Mistakes that are visible without listing the toolset are reported."""
    problems = authoring_problems(
        agent(
            Calculator, Calculator(tool_filter="add"), Calculator(tool_filter=3), Calculator(tool_name_prefix="no way")
        )
    )
    assert [str(problem) for problem in problems] == [
        "Tool 'Calculator': `tools` contains the class; use an instance of it.",
        "Tool 'Calculator': `tool_filter` is 'add'; use a list of names, or a function that decides.",
        "Tool 'Calculator': `tool_filter` is 3; use a list of names, or a function that decides.",
        "Tool 'Calculator': `tool_name_prefix` 'no way' is not a valid prefix for tool names.",
    ]


# Closing of toolsets


class Closing(Calculator):
    """A toolset that records its closing."""

    def __init__(self, problem: BaseException | None = None, wait: asyncio.Event | None = None) -> None:
        super().__init__()
        self.problem, self.wait, self.closed = problem, wait, 0

    async def close(self) -> None:
        self.closed += 1
        if self.wait is not None:
            await self.wait.wait()
        if self.problem is not None:
            raise self.problem


async def test_every_toolset_is_closed_once(logs: Logs) -> None:
    """Toolsets of agents that are called as tools are closed, too, even if others fail or hang."""
    shared, below = Closing(), Closing()
    broken, hanging = Closing(ConnectionError("gone")), Closing(wait=asyncio.Event())
    clerk = LlmAgent(name="clerk", tools=[shared, below])
    roots = [agent(broken, hanging, shared, AgentTool(clerk)), LlmAgent(name="b", tools=[shared])]
    await close_toolsets(roots, timeout_s=0.05)
    assert [toolset.closed for toolset in (shared, below, broken, hanging)] == [1, 1, 1, 1]
    assert sorted(entry["event"] for entry in logs) == ["toolset.close_failed", "toolset.close_timed_out"]
