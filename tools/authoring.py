"""Mistakes in how agents, their tools and approval rules were declared, found before anything runs."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.agents.approval_rule import ApprovalRule
from waystation.agents.base_agent import BaseAgent, listed
from waystation.agents.llm_agent import CALLBACKS, LlmAgent
from waystation.agents.loop_agent import LoopAgent
from waystation.agents.tree import kind_of
from waystation.core import AgentNameTaken, AuthoringError, InvalidAgent, InvalidTool, a, mistakes
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.functions import Signature
from waystation.tools.json_schema import json_schema
from waystation.tools.native_tool import NativeTool
from waystation.tools.toolbox import NAME, agents_below, resolve_tools


def authoring_problems(root: BaseAgent, rules: Sequence[ApprovalRule] = ()) -> list[AuthoringError]:
    """Return every mistake in a tree of agents, those called by AgentTools included, and in the rules of its app."""
    problems: list[AuthoringError] = []
    places: dict[str, list[str]] = {}
    all_entries: list[BaseTool | BaseToolset] = []
    for place, agent in agents_below(root):
        places.setdefault(agent.name, []).append(place)
        problems += [InvalidAgent(agent.name, text) for text in _agent_problems(agent)]
        if isinstance(agent, LlmAgent):
            entries, mistakes = resolve_tools(agent)
            problems += mistakes
            problems += [InvalidAgent(agent.name, text) for text in _rule_problems(agent.approval_rules, entries)]
            all_entries += entries
            for entry in entries:
                problems += _toolset_problems(entry) if isinstance(entry, BaseToolset) else _tool_problems(entry)
    problems += [InvalidAgent(root.name, f"of its app: {text}") for text in _rule_problems(rules, all_entries)]
    problems += [AgentNameTaken(name, taken) for name, taken in places.items() if len(taken) > 1]
    return problems


def _tool_problems(tool: BaseTool) -> list[AuthoringError]:
    problems: list[AuthoringError] = [InvalidTool(tool.name, problem) for problem in tool.setting_problems()]
    if callable(tool.require_confirmation) and (unknown := _unknown_parameters(tool.require_confirmation, tool)):
        names = ", ".join(map(repr, unknown))
        text = f"`require_confirmation` takes {names}, which is not a parameter of the tool."
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
    if isinstance(prefix, str) and prefix and not NAME.fullmatch(prefix):
        problems.append(InvalidTool(name, f"no tool can be called what begins with `tool_name_prefix` {prefix!r}."))
    return problems


def _agent_problems(agent: BaseAgent) -> Iterator[str]:
    if kind_of(agent) is None:
        yield (f"{a(agent)} cannot be carried out; use LlmAgent, SequentialAgent, ParallelAgent or LoopAgent.")
    children: Sequence[object] = agent.sub_agents  # which authors may change unchecked
    for child in children:
        if not isinstance(child, BaseAgent):
            yield f"`sub_agents` has {a(child)} in it; put agents there."
        elif child.parent_agent is not None and child.parent_agent is not agent:
            yield (
                f"its sub-agent {child.name!r} belongs to {child.parent_agent.name!r}; an agent can have one parent: "
                f"use `{child.name}.clone()`, with another name."
            )
    trees = (agents_below(child, called=False) for child in children if isinstance(child, BaseAgent))
    if any(agent is below for tree in trees for _, below in tree):
        yield "it is below itself in its own `sub_agents`, so that it would have no end; put a clone there."
    for name, given in CALLBACKS.items():
        for callback in listed(getattr(agent, name, None)):
            if problem := _callback_problem(callback, given):
                yield f"`{name}` {problem}"
    if isinstance(agent, LlmAgent):
        yield from _model_problems(agent)
    if isinstance(agent, LoopAgent) and agent.max_iterations is None and not agent.sub_agents:
        yield "a LoopAgent without `sub_agents` and `max_iterations` does nothing; give it agents."


def _model_problems(agent: LlmAgent) -> Iterator[str]:
    """Yield what is wrong with what an agent wants its model to be told."""
    if agent.output_schema is not None:
        try:
            if not json_schema(agent.output_schema):
                yield "its `output_schema` allows anything, so it says nothing; use a pydantic model, or leave it out."
        except Exception as error:  # noqa: BLE001  # whatever a schema raises, it is of no use
            yield f"its `output_schema` has no JSON schema ({type(error).__name__}); use a pydantic model."
    if agent.generate_content_config is not None:
        # Here, because few agents have one, and genai takes a while to import.
        from google.genai.types import GenerateContentConfig

        try:
            GenerateContentConfig.model_validate(agent.generate_content_config)
        except ValidationError as error:
            yield f"its `generate_content_config` is wrong: {mistakes(error, GenerateContentConfig.model_fields)}."
    static = agent.static_instruction
    for item in static if isinstance(static, list) else [static]:
        if not isinstance(item, str | dict | BaseModel | None):
            yield f"its `static_instruction` has {a(item)} in it; use text, a genai Content or Part, or a list of them."
    for name in ("instruction", "global_instruction"):
        provider = getattr(agent, name)
        if callable(provider) and (problem := _callback_problem(provider, ("context",))):
            yield f"`{name}` {problem}"


def _callback_problem(callback: Any, given: tuple[str, ...]) -> str | None:
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # builtins have none that can be read
        return None
    # ADK's rule: by keyword, or else by position.
    for args, kwargs in (((), dict.fromkeys(given)), (given, {})):
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            continue
        return None
    return f"takes {signature}, but is given ({', '.join(given)})."


# Approval rules: one that matches nothing protects nothing, and nobody would notice.


def _rule_problems(rules: Sequence[ApprovalRule], entries: Sequence[BaseTool | BaseToolset]) -> list[str]:
    """Return what is wrong with rules, given the tools and toolsets to which they apply."""
    # What toolsets give is known only when they are asked.
    whole = not any(isinstance(entry, BaseToolset) for entry in entries)
    found = (entry for entry in entries if not isinstance(entry, AgentTool | NativeTool))
    tools = [entry for entry in found if isinstance(entry, BaseTool)]
    return [
        f"approval rule {number} {problem}"
        for number, rule in enumerate(rules, 1)
        for problem in (
            *(f"has a policy that {mistake}" for mistake in rule.policy.mistakes()),
            *(_matching_nothing(rule, tools) if whole else ()),
            *_asking_in_vain(rule, tools),
        )
    ]


def _matching_nothing(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    for pattern in rule.tools or ():
        if not any(ApprovalRule(rule.policy, tools=(pattern,)).names(tool.name) for tool in tools):
            known = ", ".join(sorted({tool.name for tool in tools})) or "none"
            yield f"is about tools named {pattern!r}, of which there is none; there are: {known}."
    about = [(tool, _parameters(tool)) for tool in tools if rule.names(tool.name)]
    if not about or any(parameters is None for _, parameters in about):
        return
    for name in rule.over or ():
        if not any(name in (parameters or ()) for _, parameters in about):
            yield f"is about calls with a large {name!r}, which is a parameter of none of the tools that it is about."


def _asking_in_vain(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    """Yield for which tools the rule's predicate would raise at every call."""
    if rule.when is None:
        return
    for tool in tools:
        for name in _unknown_parameters(rule.when, tool) if rule.names(tool.name) else ():
            yield (
                f"asks about {name!r}, which {tool.name!r} does not take, so every call of it would wait; name "
                "the tools that it is about in `tools`, or give the parameter of `when` a default."
            )


def _unknown_parameters(predicate: Callable[..., Any], tool: BaseTool) -> list[str]:
    """Return the parameters for which a predicate is never given anything, so that it would raise at every call."""
    known = _parameters(tool)
    return [] if known is None else [name for name in Signature(predicate, "").mandatory if name not in known]


def _parameters(tool: BaseTool) -> set[str] | None:
    """Return what predicates are given of a tool's calls; None when that is not known."""
    try:
        declared = declare(tool)
    except AuthoringError:  # which is reported elsewhere
        return None
    if declared is None:
        return None
    schema = declared.get("parametersJsonSchema") or {}
    context = tool.signature.context if isinstance(tool, FunctionTool) else None
    return {*schema.get("properties", {}), *([context] if context else [])}
