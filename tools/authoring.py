"""The tools of an agent, and every mistake in how agents and tools were declared."""

import operator
import re
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

from waystation.agents.approval_rule import ApprovalRule
from waystation.agents.base_agent import BaseAgent
from waystation.agents.llm_agent import LlmAgent
from waystation.core.errors import AgentNameTaken, AuthoringError, InvalidAgent, InvalidTool, ToolNameTaken
from waystation.core.naming import a
from waystation.tools.agent_mistakes import agent_problems
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.request_input_tool import RequestInputTool
from waystation.tools.rule_mistakes import rule_problems

RESERVED_NAMES = frozenset(
    {
        "adk_request_confirmation",
        "adk_request_credential",
        "adk_request_input",
        "finish_task",
        "set_model_response",
        "transfer_to_agent",
    }
)
"""Names of ADK's own calls (adk-semantics 2.4). Not `exit_loop`: ADK's guide has authors write that one."""

# Gemini's rule, the loosest of the large providers'; a tool's name is also part of an activity type.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_CACHE = "__waystation_tools__"


def tools_of(agent: LlmAgent) -> dict[str, BaseTool]:
    """Return the tools that an agent always has by name, in the agent's order; not those of its toolsets.

    Raises:
        InvalidTool: Something in `agent.tools` is not a tool, or its name cannot be used.
        ToolNameTaken: Two tools have the same name.
    """
    return {entry.name: entry for entry in entries_of(agent) if isinstance(entry, BaseTool)}


def toolsets_of(agent: LlmAgent) -> list[BaseToolset]:
    """Return the toolsets of an agent, in its order."""
    return [entry for entry in agent.tools if isinstance(entry, BaseToolset)]


def entries_of(agent: LlmAgent) -> tuple[BaseTool | BaseToolset, ...]:
    """Return the tools and toolsets of an agent, in its order; bare functions become FunctionTools.

    The very same tools are returned until `agent.tools` changes.

    Raises:
        InvalidTool: Something in `agent.tools` is not a tool, or its name cannot be used.
        ToolNameTaken: Two tools have the same name.
    """
    cached = agent.__dict__.get(_CACHE)
    if cached is None or not _same(cached[0], agent.tools):
        entries, problems = _resolved(agent)
        if problems:
            raise problems[0]
        # Kept on the agent, as functools.cached_property does, so that it goes when the agent goes.
        cached = agent.__dict__[_CACHE] = (tuple(agent.tools), tuple(entries))
    found: tuple[BaseTool | BaseToolset, ...] = cached[1]
    return found


def authoring_problems(root: BaseAgent, rules: Sequence[ApprovalRule] = ()) -> list[AuthoringError]:
    """Return every mistake in a tree of agents, those called by AgentTools included, and in the rules of its app."""
    problems: list[AuthoringError] = []
    places: dict[str, list[str]] = {}
    all_entries: list[BaseTool | BaseToolset] = []
    for place, agent in agents_below(root):
        places.setdefault(agent.name, []).append(place)
        problems += agent_problems(agent)
        if isinstance(agent, LlmAgent):
            entries, mistakes = _resolved(agent)
            problems += mistakes
            problems += [InvalidAgent(agent.name, text) for text in rule_problems(agent.approval_rules, entries)]
            all_entries += entries
            for entry in entries:
                problems += _toolset_problems(entry) if isinstance(entry, BaseToolset) else _tool_problems(entry)
    problems += [InvalidAgent(root.name, f"of its app: {text}") for text in rule_problems(rules, all_entries)]
    problems += [AgentNameTaken(name, taken) for name, taken in places.items() if len(taken) > 1]
    return problems


def _same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _resolved(agent: LlmAgent) -> tuple[list[BaseTool | BaseToolset], list[AuthoringError]]:
    """Return what can be used of the agent's tools, and what is wrong with them."""
    tools: list[BaseTool | BaseToolset] = []
    problems: list[AuthoringError] = []
    names: set[str] = set()
    for item in agent.tools:
        if isinstance(item, BaseToolset):
            tools.append(item)
            continue
        try:
            tool = _tool(item)
        except InvalidTool as error:
            problems.append(error)
            continue
        problem = None if isinstance(tool, RequestInputTool) else name_problem(tool.name)
        if problem is not None:
            problems.append(InvalidTool(tool.name, problem))
        if tool.name in names:
            problems.append(ToolNameTaken(agent.name, tool.name))
        names.add(tool.name)
        tools.append(tool)
    return tools, problems


def _tool(item: object) -> BaseTool:
    if isinstance(item, BaseTool):
        kind = type(item).__name__
        if not hasattr(item, "name"):
            text = "its `__init__` has to begin with `super().__init__(name=..., description=...)`."
            raise InvalidTool(kind, text)
        if not isinstance(item.name, str):
            raise InvalidTool(kind, f"`name` is {reprlib.repr(item.name)}; use text.")
        return item
    if isinstance(item, type) and issubclass(item, BaseTool | BaseToolset):
        raise InvalidTool(item.__name__, "a class was put into `tools`; put an instance of it there.")
    if isinstance(item, type):
        raise InvalidTool(item.__name__, "a class was put into `tools`; put a function there that makes and uses one.")
    if not callable(item):
        shown = reprlib.repr(item)
        raise InvalidTool(shown, f"{a(item)} was put into `tools`; put functions and BaseTools there.")
    return FunctionTool(item)


def name_problem(name: str) -> str | None:
    """Return why a tool cannot have this name, or None."""
    if name in RESERVED_NAMES:
        return "the name is reserved for the framework; rename the function."
    if not _NAME.fullmatch(name):
        return (
            "models do not take this name; start it with a letter or an underscore, and use at most 64 "
            "letters, digits, `_`, `.`, `:` and `-`. A lambda needs a `def`."
        )
    return None


def _tool_problems(tool: BaseTool) -> list[AuthoringError]:
    problems: list[AuthoringError] = [InvalidTool(tool.name, problem) for problem in tool.setting_problems()]
    if isinstance(tool, FunctionTool) and (unknown := tool.unknown_to_predicate()):
        text = f"`require_confirmation` is given the tool's parameters, and {', '.join(map(repr, unknown))} is none."
        problems.append(InvalidTool(tool.name, text))
    try:
        declare(tool)
    except AuthoringError as error:
        problems.append(error)
    return problems


def _toolset_problems(toolset: BaseToolset) -> list[AuthoringError]:
    name = type(toolset).__name__
    problems: list[AuthoringError] = [InvalidTool(name, problem) for problem in toolset.setting_problems()]
    prefix = toolset.tool_name_prefix
    if isinstance(prefix, str) and prefix and not _NAME.fullmatch(prefix):
        problems.append(InvalidTool(name, f"no tool can be called what begins with `tool_name_prefix` {prefix!r}."))
    return problems


def agents_below(root: BaseAgent, *, with_plugins: bool = False) -> Iterator[tuple[str, BaseAgent]]:
    """Yield every agent of a tree once, with the place where it was found; a tree may contain itself.

    `with_plugins` leaves out those that are only called by AgentTools with `include_plugins=False`.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, BaseAgent]] = [(root.name, root)]
    while waiting:
        place, agent = waiting.pop(0)
        if id(agent) in seen:
            continue
        seen.add(id(agent))
        yield place, agent
        children: Sequence[object] = agent.sub_agents  # which authors may change unchecked
        below = [child for child in children if isinstance(child, BaseAgent)]
        waiting.extend((f"{place}.sub_agents[{i}]", child) for i, child in enumerate(below))
        for i, tool in enumerate(agent.tools if isinstance(agent, LlmAgent) else ()):
            if isinstance(tool, AgentTool) and not (with_plugins and not tool.include_plugins):
                waiting.append((f"{place}.tools[{i}]", tool.agent))
