"""One tool call with the callbacks around it. Source of the order: adk-semantics 1.6."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from waystation.activities.hooks import CallbackRaised, Hooks
from waystation.agents.base_agent import BaseAgent
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.tree import shape_of, transfer_target
from waystation.core.event import merge_actions
from waystation.core.payload import JsonObject
from waystation.core.tool_call import ToolOutcome
from waystation.tools.base_tool import BaseTool
from waystation.tools.outcome import describe, failure_of, outcome_of
from waystation.tools.tool_context import ToolContext


@dataclass(frozen=True, slots=True)
class Attempt:
    """What running a tool came to."""

    context: ToolContext
    """The context in which it ran last."""
    value: Any = None
    """What it returned, as it stands."""
    raised: BaseException | None = None
    """What it raised instead."""
    told: ToolOutcome | None = None
    """What the model is told of that, unless a callback knows better; where nothing was raised, none is asked: the tool
    was not allowed to run."""


async def performed(
    hooks: Hooks,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    run: Callable[[JsonObject], Awaitable[Attempt]],
) -> ToolOutcome:
    """Run a tool with the callbacks around it, which may change `args`, answer in its place and change its answer."""
    try:
        value = await hooks.before_tool(tool, args, context)
        if value is None:
            attempt = await run(args)
            value, context = attempt.value, attempt.context
            if attempt.raised is not None:
                value = await hooks.on_tool_error(tool, args, context, attempt.raised)
                if value is None:
                    return attempt.told or failure_of(attempt.raised, context=context)
            elif attempt.told is not None:
                return attempt.told
        changed = await hooks.after_tool(tool, args, context, value)
    except CallbackRaised as error:
        return callback_failed(error, tool, context)
    return outcome_of(value if changed is None else changed, context=context, long_running=tool.is_long_running)


async def without_tool(
    hooks: Hooks, name: str, args: JsonObject, context: ToolContext, problem: str
) -> ToolOutcome | None:
    """Return what callbacks answer to a call of a tool that does not exist; None when they leave it."""
    tool = BaseTool(name=name or "<unnamed>", description="Tool not found")
    try:
        value = await hooks.before_tool(tool, args, context)
        if value is not None:
            changed = await hooks.after_tool(tool, args, context, value)
            return outcome_of(value if changed is None else changed, context=context)
        # No `after_tool`: there was no run that it could speak of.
        value = await hooks.on_tool_error(tool, args, context, ValueError(problem))
    except CallbackRaised as error:
        return callback_failed(error, tool, context)
    return None if value is None else outcome_of(value, context=context)


async def after_agent_call(
    hooks: Hooks, tool: BaseTool, args: JsonObject, context: ToolContext, child: ToolOutcome
) -> ToolOutcome:
    """Return the outcome of a called agent, passed through the callbacks for errors and results."""
    response = child.response or {}
    # What an AgentTool returns is its text; only the response has it in an object.
    value: Any = response["result"] if response.keys() == {"result"} else response
    try:
        if child.error_type is not None:
            value = await hooks.on_tool_error(tool, args, context, RuntimeError(str(response.get("error", ""))))
            if value is None:
                return child
        changed = await hooks.after_tool(tool, args, context, value)
    except CallbackRaised as error:
        return callback_failed(error, tool, context)
    if changed is None and child.error_type is None:
        own = outcome_of(response, context=context)
        outcome = child
    else:
        outcome = own = outcome_of(value if changed is None else changed, context=context)
    actions = [found for found in (child.actions, own.actions) if found is not None]
    return outcome.model_copy(update={"actions": merge_actions(actions) if actions else None})


def callback_failed(error: CallbackRaised, tool: BaseTool, context: ToolContext) -> ToolOutcome:
    """Return what the model is told when a callback around a tool raised."""
    return failure_of(error.cause, context=context).model_copy(update={"fatal": tool.on_error == "raise"})


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
