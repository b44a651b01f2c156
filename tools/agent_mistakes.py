"""Mistakes in how agents were declared, found before anything runs."""

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.agents.base_agent import BaseAgent, listed
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.loop_agent import LoopAgent
from waystation.agents.tree import kind_of
from waystation.core.errors import InvalidAgent
from waystation.core.naming import a, mistakes
from waystation.tools.json_schema import json_schema

CALLBACKS: dict[str, tuple[str, ...]] = {
    "before_agent_callback": ("callback_context",),
    "after_agent_callback": ("callback_context",),
    "before_model_callback": ("callback_context", "llm_request"),
    "after_model_callback": ("callback_context", "llm_response"),
    "on_model_error_callback": ("callback_context", "llm_request", "error"),
    "before_tool_callback": ("tool", "args", "tool_context"),
    "after_tool_callback": ("tool", "args", "tool_context", "tool_response"),
    "on_tool_error_callback": ("tool", "args", "tool_context", "error"),
}
"""What each callback is given, by keyword and in this order. Source: adk-semantics 1.6, 9.4."""


def agent_problems(agent: BaseAgent) -> list[InvalidAgent]:
    """Return what is wrong with the agent itself, one error each; its tools are looked at elsewhere."""
    return [InvalidAgent(agent.name, problem) for problem in _problems(agent)]


def _problems(agent: BaseAgent) -> Iterator[str]:
    if kind_of(agent) is None:
        yield (f"{a(agent)} cannot be carried out; use LlmAgent, SequentialAgent, ParallelAgent or LoopAgent.")
    for child in agent.sub_agents:
        if not isinstance(child, BaseAgent):
            yield f"`sub_agents` has {a(child)} in it; put agents there."
        elif child.parent_agent is not None and child.parent_agent is not agent:
            yield (
                f"its sub-agent {child.name!r} belongs to {child.parent_agent.name!r}; an agent can have one parent: "
                f"use `{child.name}.clone()`, with another name."
            )
    if any(agent is below for child in agent.sub_agents for below in _subtree(child)):
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


def _subtree(agent: object) -> Iterator[object]:
    """Yield an agent and those below it, each once, though the tree may contain itself."""
    seen: set[int] = set()
    waiting = [agent]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting.extend(found.sub_agents if isinstance(found, BaseAgent) else ())


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
