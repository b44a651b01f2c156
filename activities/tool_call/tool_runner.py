"""Run a tool with the callbacks around it. Source of the order: adk-semantics 1.6."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from waystation.activities.callbacks import CallbackRaised, Hooks
from waystation.agents import BaseAgent, LlmAgent
from waystation.agents.tree import shape_of, transfer_target
from waystation.core.event import merge_actions
from waystation.core.payload import JsonObject
from waystation.core.tool_call import ToolOutcome
from waystation.tools import BaseTool, ToolContext
from waystation.tools.outcome import describe, failure_of, outcome_of


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one try to run a tool."""

    context: ToolContext
    value: Any = None
    """What the tool returned, unchanged."""
    raised: BaseException | None = None
    outcome: ToolOutcome | None = None
    """Recorded instead of a value. Callbacks may replace it only where the tool raised: otherwise it was not allowed to
    run."""
    repeatable: bool = False
    """Whether the tool may be tried again."""


async def run_with_callbacks(
    hooks: Hooks,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    run: Callable[[], Awaitable[Attempt]],
) -> ToolOutcome:
    """Run a tool with the callbacks around it, which may change `args`, answer in its place and change its answer."""
    try:
        answered = await ask_before(hooks, tool, args, context, long_running=tool.is_long_running)
        if answered is not None:
            return answered
        attempt = await run()
        value, context = attempt.value, attempt.context
        if attempt.raised is not None:
            value = await hooks.around_tool("on_tool_error_callback", tool, args, context, error=attempt.raised)
        if attempt.outcome is not None and value is None:
            return attempt.outcome
        return await _ask_after(hooks, tool, args, context, value, long_running=tool.is_long_running)
    except CallbackRaised as error:
        return raised_outcome(tool, error.cause, context)


async def run_without_tool(
    hooks: Hooks, name: str, args: JsonObject, context: ToolContext, problem: str
) -> ToolOutcome | None:
    """Return what callbacks answer to a call of a tool that does not exist; None when none of them answers."""
    tool = BaseTool(name=name or "<unnamed>", description="Tool not found")
    try:
        answered = await ask_before(hooks, tool, args, context)
        if answered is not None:
            return answered
        # No `after_tool`: nothing ran.
        value = await hooks.around_tool("on_tool_error_callback", tool, args, context, error=ValueError(problem))
    except CallbackRaised as error:
        return raised_outcome(tool, error.cause, context)
    return None if value is None else outcome_of(value, context=context)


async def run_after_agent(
    hooks: Hooks, tool: BaseTool, args: JsonObject, context: ToolContext, child: ToolOutcome
) -> ToolOutcome:
    """Return the outcome of a called agent, passed through the callbacks for errors and results."""
    response = child.response or {}
    # What an AgentTool returns is its text; only the response has it in an object.
    value: Any = response["result"] if response.keys() == {"result"} else response
    try:
        if child.error_type is not None:
            error = RuntimeError(str(response.get("error", "")))
            value = await hooks.around_tool("on_tool_error_callback", tool, args, context, error=error)
            if value is None:
                return child
        changed = await hooks.around_tool("after_tool_callback", tool, args, context, result=value)
    except CallbackRaised as raised:
        return raised_outcome(tool, raised.cause, context)
    if changed is None and child.error_type is None:
        own = outcome_of(response, context=context)
        outcome = child
    else:
        outcome = own = outcome_of(value if changed is None else changed, context=context)
    actions = [each.actions for each in (child, own) if each.actions is not None]
    return outcome.model_copy(update={"actions": merge_actions(actions) if actions else None})


async def ask_before(
    hooks: Hooks, tool: BaseTool, args: JsonObject, context: ToolContext, *, long_running: bool = False
) -> ToolOutcome | None:
    """Return what the callbacks before a tool answer in its place; None when it is to run.

    Raises:
        CallbackRaised: One of them raised, or one of those after the tool.
    """
    value = await hooks.around_tool("before_tool_callback", tool, args, context)
    return None if value is None else await _ask_after(hooks, tool, args, context, value, long_running=long_running)


async def _ask_after(
    hooks: Hooks, tool: BaseTool, args: JsonObject, context: ToolContext, value: Any, *, long_running: bool
) -> ToolOutcome:
    changed = await hooks.around_tool("after_tool_callback", tool, args, context, result=value)
    return outcome_of(value if changed is None else changed, context=context, long_running=long_running)


def raised_outcome(tool: BaseTool, error: BaseException, context: ToolContext) -> ToolOutcome:
    """Return the outcome of a call in which the tool, or a callback around it, raised."""
    return failure_of(error, context=context).model_copy(update={"fatal": tool.on_error == "raise"})


def with_transfer(outcome: ToolOutcome, agent: BaseAgent, hooks: Hooks) -> ToolOutcome:
    """Return an outcome with the shape of the agent that it transfers to; or an error, when it may not."""
    name = outcome.actions.transfer_to_agent if outcome.actions else None
    if outcome.actions is None or name is None or not isinstance(agent, LlmAgent):
        return outcome
    try:
        target = transfer_target(agent, name)
    except ValueError as error:
        response = {"error": describe(error), "error_type": "ValueError"}
        actions = outcome.actions.model_copy(update={"transfer_to_agent": None, "transfer_reason": None})
        return outcome.model_copy(update={"response": response, "error_type": "ValueError", "actions": actions})
    return outcome.model_copy(update={"transfer": shape_of(target, hooks.plugins)})
