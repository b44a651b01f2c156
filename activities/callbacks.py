"""The callbacks around agents, models and tools: those of the app's plugins first, then the agent's own.

Within a kind the first that answers ends the chain. Sources: adk-semantics 1.6 and 9.4.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from waystation.activities.contexts import Contexts
from waystation.activities.model_call.conversion import content_json
from waystation.agents import BaseAgent, LlmAgent
from waystation.agents.base_agent import listed
from waystation.agents.llm_agent import CALLBACKS
from waystation.agents.tree import shape_of, transfer_target
from waystation.core import (
    NO_ACTIONS,
    ActivitySettings,
    AgentShape,
    EventActions,
    JsonObject,
    ModelReply,
    NotJson,
    Said,
    StoreFailed,
    ToolOutcome,
    WaystationError,
    merge_actions,
    text_of,
)
from waystation.models import LlmResponse
from waystation.plugins.base_plugin import BasePlugin, overrides
from waystation.tools import BaseTool, CallbackContext, ToolContext
from waystation.tools.functions import invoke
from waystation.tools.outcome import describe, failure_of, outcome_of
from waystation.tools.output_schema import parsed
from waystation.tools.places import place_of
from waystation.tools.tool_context import NotAwaited

events = structlog.get_logger("waystation.activities")

CLOSE_TIMEOUT_S = 5.0
"""How long a plugin may take to close, as in ADK."""
CLEANUP_S = 2.0
"""How long the callbacks of a cancelled call may take to clean up."""
CALLBACK_TIMEOUT = ActivitySettings().callback_timeout


class Misreturned(TypeError):
    """A callback returned something that cannot stand for what was asked of it."""

    def __init__(self, value: object, wanted: str) -> None:
        super().__init__(f"returned a value of type {type(value).__name__}; return {wanted} or None.")


class CallbackRaised(WaystationError):
    """A callback raised. `kind` and the message are fit for a history: no text of the author's code is in them."""

    def __init__(self, name: str, error: Exception, plugin: str | None = None) -> None:
        kind = TypeError if isinstance(error, Misreturned) else type(error)
        self.kind = "RuntimeError" if plugin else kind.__name__
        shown = name if " " in name else f"`{name}`"
        # ADK's words, see adk-semantics 1.6.
        told = f"Error in plugin '{plugin}' during '{name}' callback:" if plugin else f"{shown} raised"
        self.cause = RuntimeError(f"{told} {error}") if plugin else error
        """What a model may be told."""
        self.passing = isinstance(error, StoreFailed)
        """Whether another attempt may succeed."""
        if isinstance(error, Misreturned):
            text = f"{shown} {error}"
        elif isinstance(error, NotAwaited | NotJson | StoreFailed):  # whose texts are ours, and say what to write
            text = f"{told} {error}" if plugin else f"{shown}: {error}"
        else:
            text = f"{told} {type(error).__name__}{f' at {place}' if (place := place_of(error)) else ''}."
        super().__init__(text)


class UserMessageChanged(WaystationError):
    """A plugin wants to replace the message that an invocation was started with, which is recorded."""


def recorded(context: CallbackContext, name: str) -> EventActions:
    """Return what callbacks wrote, as it is recorded.

    Raises:
        CallbackRaised: It cannot be recorded; `name` says whose it is.
    """
    if (forgotten := context.not_awaited()) is not None:
        raise CallbackRaised(name, forgotten)
    try:
        return context.recorded_actions()
    except Exception as error:
        raise CallbackRaised(name, error) from error


async def close_plugins(plugins: Iterable[BasePlugin], *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Close plugins, each once. One that raises or hangs is logged and left."""
    for plugin in {id(plugin): plugin for plugin in plugins}.values():
        try:
            async with asyncio.timeout(timeout_s):
                await plugin.close()
        except Exception as error:  # noqa: BLE001  # author's code; the others have to be closed too
            events.warning("plugin.close_failed", plugin=plugin.name, error_type=type(error).__name__)


class Hooks:
    """The callbacks that accompany one agent. A callback that raises is a CallbackRaised."""

    def __init__(self, agent: BaseAgent, plugins: Sequence[BasePlugin], timeout: timedelta = CALLBACK_TIMEOUT) -> None:
        """`timeout` is that of one callback."""
        self.agent, self.plugins, self._timeout = agent, plugins, timeout

    def has(self, *names: str) -> bool:
        """Whether there is any callback of these names, such as `before_tool_callback`."""
        return any(self._own(name) or any(overrides(plugin, name) for plugin in self.plugins) for name in names)

    @property
    def around_tools(self) -> bool:
        """Whether there is any callback around tools."""
        return self.has("before_tool_callback", "after_tool_callback", "on_tool_error_callback")

    @property
    def around_models(self) -> bool:
        """Whether there is any callback around models."""
        return self.has("before_model_callback", "after_model_callback", "on_model_error_callback")

    async def run_plugins(self, name: str, **params: Any) -> Any:
        """Run a callback of the plugins only, as for those around a whole invocation; return the first answer."""
        for plugin in self.plugins:
            if not overrides(plugin, name):
                continue
            try:
                answer = await self._call(getattr(plugin, name), name, params)
            except Exception as error:
                raise CallbackRaised(name, error, plugin.name) from error
            if answer is not None:
                return answer
        return None

    async def around_agent(self, name: str, context: CallbackContext) -> Any:
        """Run the callbacks before or after the agent; return the Content that one of them returned."""
        return await self._first_answer(name, bool, agent=self.agent, callback_context=context)

    async def around_model(self, name: str, context: CallbackContext, **params: Any) -> LlmResponse | None:
        """Run the callbacks of a kind around a model call; return the response that one of them gave instead."""
        answer = await self._first_answer(name, bool, callback_context=context, **params)
        if answer is not None and not isinstance(answer, LlmResponse):
            raise CallbackRaised(name, Misreturned(answer, "an LlmResponse"))
        return answer

    async def around_tool(
        self, name: str, tool: BaseTool, args: JsonObject, context: ToolContext, **params: Any
    ) -> Any:
        """Run the callbacks of a kind around a tool call, which may change `args`; return what one of them gave instead
        of the tool's result."""
        return await self._first_answer(name, _is_given, tool=tool, tool_args=args, tool_context=context, **params)

    async def tool_cancelled(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> None:
        """Run every error callback of a cancelled call, so that it can clean up; what they return is ignored."""
        name = "on_tool_error_callback"
        if not self.has(name):
            return
        params = {"tool": tool, "tool_args": args, "tool_context": context, "error": asyncio.CancelledError()}
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(CLEANUP_S):
                callbacks = [(getattr(plugin, name), False) for plugin in self.plugins]
                for callback, own in (*callbacks, *((callback, True) for callback in self._own(name))):
                    try:
                        await self._call(callback, name, params, own=own)
                    except Exception as error:  # noqa: BLE001  # author's code; the others have to clean up too
                        events.warning("callback.failed", callback=name, error_type=type(error).__name__)

    async def _first_answer(self, name: str, is_answer: Callable[[Any], bool], **params: Any) -> Any:
        """Return the first answer: of the plugins, then of the agent's own callbacks."""
        answer = await self.run_plugins(name, **params)
        if is_answer(answer):
            return answer
        for callback in self._own(name):
            try:
                answer = await self._call(callback, name, params, own=True)
            except Exception as error:
                raise CallbackRaised(name, error) from error
            if is_answer(answer):
                return answer
        return None

    def _own(self, name: str) -> list[Callable[..., Any]]:
        return listed(getattr(self.agent, name, None))

    async def _call(self, callback: Callable[..., Any], name: str, params: JsonObject, *, own: bool = False) -> Any:
        """Call a callback by keyword. An agent's own is given parameters of other names than a plugin's, and is called
        by position when it names them otherwise, which is ADK's rule too."""
        if own:
            renamed = {"args": params.get("tool_args"), "tool_response": params.get("result"), **params}
            params = {parameter: renamed[parameter] for parameter in CALLBACKS[name]}
        async with asyncio.timeout(self._timeout.total_seconds()):
            try:
                signature = inspect.signature(callback)
            except (TypeError, ValueError):  # a builtin
                answer = callback(**params)
                return await answer if inspect.isawaitable(answer) else answer
            try:
                bound = signature.bind(**params)
            except TypeError:
                if not own:
                    raise
                bound = signature.bind(*params.values())
            return await invoke(callback, bound)


def _is_given(answer: Any) -> bool:
    return answer is not None


@dataclass(frozen=True, slots=True)
class AgentCallbacks:
    """Enters and leaves one agent, with the callbacks around it. Both raise CallbackRaised."""

    hooks: Hooks
    contexts: Contexts

    @property
    def _first(self) -> bool:
        """Whether the invocation began with this agent."""
        return self.contexts.work.index == 0

    async def enter(self) -> ModelReply:
        """Report the agent's shape, and run the callbacks before it.

        Raises:
            UserMessageChanged: A plugin wants the user's message to be another one.
        """
        agent = self.hooks.agent
        shape: AgentShape | None = shape_of(agent, self.hooks.plugins, first=self._first)
        if shape == AgentShape(name=agent.name):
            shape = None  # the workflow takes an agent to be that by default
        if not self.hooks.plugins and not self.hooks.has("before_agent_callback"):
            return ModelReply(shape=shape)
        context = self.contexts.callback("agent")
        if self._first and self.hooks.plugins:
            params = {"invocation_context": context, "user_message": context.user_content}
            if await self.hooks.run_plugins("on_user_message_callback", **params) is not None:
                raise UserMessageChanged(
                    "A plugin's `on_user_message_callback` returned a message, but the one that began the invocation "
                    "is recorded; return None, and change what the model is shown in `before_model_callback`."
                )
            answer = await self.hooks.run_plugins("before_run_callback", invocation_context=context)
            if answer:
                await self.hooks.run_plugins("after_run_callback", invocation_context=context)
                said = _said(_content(answer, "before_run_callback"), recorded(context, "before_run_callback"))
                return ModelReply(shape=shape, before=said, skipped=True, ends_invocation=True)
        name = "before_agent_callback"
        content = _content(await self.hooks.around_agent(name, context), name)
        if content is not None:
            self._store(context.state, content)
            # An agent that was spoken for is not left: only plugins are told that the invocation is over.
            after = self._first and self.hooks.has("after_run_callback")
            shape = (shape or AgentShape(name=agent.name)).model_copy(update={"after": after})
        return ModelReply(shape=shape, before=_said(content, recorded(context, name)), skipped=content is not None)

    async def leave(self) -> Said | None:
        """Run the callbacks after the agent; return what they said and wrote."""
        name, answer = "after_agent_callback", None
        context = self.contexts.callback("agent")
        if not self.contexts.work.spoken_for:
            answer = await self.hooks.around_agent(name, context)
        if self._first:
            await self.hooks.run_plugins("after_run_callback", invocation_context=context)
        return _said(_content(answer, name), recorded(context, name))

    def _store(self, state: Any, content: JsonObject) -> None:
        """Store what callbacks said for an LLM agent as if its model had said it."""
        agent, text = self.hooks.agent, text_of(content)
        if not (isinstance(agent, LlmAgent) and agent.output_key and text):
            return
        if not agent.output_schema:
            state[agent.output_key] = text
        elif text.strip():
            try:
                state[agent.output_key] = parsed(agent.output_schema, text)
            except ValueError as error:
                raise CallbackRaised("before_agent_callback", error) from error


def _content(answer: Any, name: str) -> JsonObject | None:
    """Return what a callback returned as a Content in JSON."""
    try:
        return content_json(answer) if answer else None
    except NotJson as error:
        raise CallbackRaised(name, error) from error
    except TypeError:
        raise CallbackRaised(name, Misreturned(answer, "a genai Content")) from None


def _said(content: JsonObject | None, actions: EventActions) -> Said | None:
    if content is None and actions == NO_ACTIONS:
        return None
    return Said(content=content, actions=None if actions == NO_ACTIONS else actions)


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
    ran: bool = True
    """False for a tool that does not exist: no `after_tool` callback follows."""


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
        if not attempt.ran:
            return outcome_of(value, context=context)
        return await _ask_after(hooks, tool, args, context, value, long_running=tool.is_long_running)
    except CallbackRaised as error:
        return raised_outcome(tool, error.cause, context)


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


def with_transfer(outcome: ToolOutcome, hooks: Hooks) -> ToolOutcome:
    """Return an outcome with the shape of the agent that it transfers to; or an error, when it may not."""
    agent, name = hooks.agent, outcome.actions.transfer_to_agent if outcome.actions else None
    if outcome.actions is None or name is None or not isinstance(agent, LlmAgent):
        return outcome
    try:
        target = transfer_target(agent, name)
    except ValueError as error:
        response = {"error": describe(error), "error_type": "ValueError"}
        actions = outcome.actions.model_copy(update={"transfer_to_agent": None, "transfer_reason": None})
        return outcome.model_copy(update={"response": response, "error_type": "ValueError", "actions": actions})
    return outcome.model_copy(update={"transfer": shape_of(target, hooks.plugins)})
