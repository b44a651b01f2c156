"""Run the callbacks around agents, models and tools. The app's plugins come first, then the agent's own callbacks.

The first callback that returns a value ends the chain, as in ADK 2.13.
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
from waystation.activities.model_call.conversion import content_to_json
from waystation.agents import BaseAgent, LlmAgent
from waystation.agents.base_agent import as_list
from waystation.agents.llm_agent import CALLBACKS
from waystation.agents.tree import create_agent_spec, transfer_target
from waystation.core.contract import (
    NO_ACTIONS,
    ActivitySettings,
    AgentSpec,
    CallbackResult,
    EventActions,
    ModelReply,
    ToolOutcome,
    merge_actions,
    text_of,
)
from waystation.core.errors import CredentialStoreError, NotJson, StoreFailed, WaystationError
from waystation.core.payload import JsonObject
from waystation.models import LlmResponse
from waystation.plugins.base_plugin import BasePlugin, overrides_callback
from waystation.tools import BaseTool, CallbackContext, NoInvocationContext, ToolContext
from waystation.tools.functions import invoke
from waystation.tools.outcome import convert_result, create_failure_outcome, create_ran_outcome, describe_error
from waystation.tools.output_schema import parse_answer_text
from waystation.tools.places import find_author_line
from waystation.tools.tool_context import NotAwaited

events = structlog.get_logger("waystation.activities")

CLOSE_TIMEOUT_S = 5.0
"""Time limit for closing a plugin, as in ADK."""
CLEANUP_S = 2.0
"""Time limit for the callbacks of a canceled call to clean up."""
CALLBACK_TIMEOUT = ActivitySettings().callback_timeout


class WrongReturnType(TypeError):
    """A callback returned a value of the wrong type."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"returned a value of type {type(value).__name__}; return {expected} or None.")


class CallbackRaised(WaystationError):
    """A callback raised an exception or returned an invalid value. `kind` and the message can be recorded, because
    they never quote the messages of exceptions from user code.

    Fix the callback that the message names.
    """

    def __init__(self, name: str, error: Exception, plugin: str | None = None) -> None:
        kind = TypeError if isinstance(error, WrongReturnType) else type(error)
        self.kind = "RuntimeError" if plugin else kind.__name__
        self.callback = quoted = name if " " in name else f"`{name}`"
        # The wording matches ADK.
        prefix = f"Error in plugin '{plugin}' during '{name}' callback:" if plugin else f"{quoted} raised"
        self.cause = RuntimeError(f"{prefix} {error}") if plugin else error
        """The error that the model sees if the callback belonged to a tool call."""
        self.retryable = isinstance(error, StoreFailed | CredentialStoreError)
        if isinstance(error, WrongReturnType):
            text = f"{quoted} {error}"
        elif isinstance(error, NoInvocationContext | NotAwaited | NotJson | StoreFailed | CredentialStoreError):
            # These messages are ours and name the remedy.
            text = f"{prefix} {error}" if plugin else f"{quoted}: {error}"
        else:
            text = f"{prefix} {type(error).__name__}{f' at {place}' if (place := find_author_line(error)) else ''}."
        super().__init__(text)


class UserMessageChanged(WaystationError):
    """A plugin tried to replace an invocation's user message, which is already recorded.

    Return None from `on_user_message_callback`.
    """


def collect_actions(context: CallbackContext, name: str) -> EventActions:
    """Return the actions of callbacks in their recorded form.

    Raises:
        CallbackRaised: The actions cannot be recorded. The error names the callback `name`.
    """
    if (forgotten := context.not_awaited()) is not None:
        raise CallbackRaised(name, forgotten)
    try:
        actions = context.recorded_actions()
        if keys := [key for key, notes in context.state.replaced.items() if notes]:
            events.warning("state.values_replaced", callback=name, keys=keys)
        return actions
    except Exception as error:
        raise CallbackRaised(name, error) from error


async def close_plugins(plugins: Iterable[BasePlugin], *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Close each plugin once. If a plugin raises or hangs, log it and continue."""
    for plugin in {id(plugin): plugin for plugin in plugins}.values():
        try:
            async with asyncio.timeout(timeout_s):
                await plugin.close()
        except Exception as error:  # noqa: BLE001  # user code; the other plugins must still be closed
            events.warning("plugin.close_failed", plugin=plugin.name, error_type=type(error).__name__)


class Hooks:
    """The callbacks around one agent: the plugins' and its own.

    The methods that run callbacks raise CallbackRaised if a callback raises, except for `tool_cancelled`.
    """

    def __init__(self, agent: BaseAgent, plugins: Sequence[BasePlugin], timeout: timedelta = CALLBACK_TIMEOUT) -> None:
        """Store the settings. `timeout` limits each callback."""
        self.agent, self.plugins, self._timeout = agent, plugins, timeout

    def has(self, *names: str) -> bool:
        """Return whether a plugin or the agent has a callback with one of these names, e.g. `before_tool_callback`."""
        return any(
            self._own(name) or any(overrides_callback(plugin, name) for plugin in self.plugins) for name in names
        )

    @property
    def has_tool_callbacks(self) -> bool:
        return self.has("before_tool_callback", "after_tool_callback", "on_tool_error_callback")

    @property
    def has_model_callbacks(self) -> bool:
        return self.has("before_model_callback", "after_model_callback", "on_model_error_callback")

    async def run_plugins(self, name: str, **params: Any) -> Any:
        """Run the plugins' callbacks with this name until one returns a value other than None, and return that value.

        The callbacks around an invocation run this way, because agents cannot have them.
        """
        for plugin in self.plugins:
            if not overrides_callback(plugin, name):
                continue
            try:
                answer = await self._call(getattr(plugin, name), name, params)
            except Exception as error:
                raise CallbackRaised(name, error, plugin.name) from error
            if answer is not None:
                return answer
        return None

    async def around_agent(self, name: str, context: CallbackContext) -> Any:
        """Run the callbacks before or after the agent. Return the first result that is not empty, or None.

        The caller must check the result's type.
        """
        return await self._first_answer(name, bool, agent=self.agent, callback_context=context)

    async def around_model(self, name: str, context: CallbackContext, **params: Any) -> LlmResponse | None:
        """Run one kind of callback around a model call. Return the response to use instead of the model's, or None."""
        answer = await self._first_answer(name, bool, callback_context=context, **params)
        if answer is not None and not isinstance(answer, LlmResponse):
            raise CallbackRaised(name, WrongReturnType(answer, "an LlmResponse"))
        return answer

    async def around_tool(
        self, name: str, tool: BaseTool, args: JsonObject, context: ToolContext, **params: Any
    ) -> Any:
        """Run one kind of callback around a tool call. Return the value to use instead of the tool's result, or None.

        The callbacks may modify `args`.
        """
        return await self._first_answer(name, _is_not_none, tool=tool, tool_args=args, tool_context=context, **params)

    async def tool_cancelled(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> None:
        """Run all error callbacks of a canceled call so that they can clean up, for at most `CLEANUP_S`.

        Ignore what they return, and only log what they raise.
        """
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
                    except Exception as error:  # noqa: BLE001  # user code; the other callbacks must still run
                        events.warning("callback.failed", callback=name, error_type=type(error).__name__)

    async def _first_answer(self, name: str, is_answer: Callable[[Any], bool], **params: Any) -> Any:
        """Run the plugins' callbacks, then the agent's own, until `is_answer` accepts a result. Return that result, or
        None.
        """
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
        return as_list(getattr(self.agent, name, None))

    async def _call(self, callback: Callable[..., Any], name: str, params: JsonObject, *, own: bool = False) -> Any:
        """Call a callback with keyword arguments.

        As in ADK, an agent's own callbacks (`own`) have different parameter names than a plugin's. If a callback of the
        agent uses other names, it is called with positional arguments.
        """
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
                arguments = signature.bind(**params)
            except TypeError:
                if not own:
                    raise
                arguments = signature.bind(*params.values())
            return await invoke(callback, arguments)


def _is_not_none(answer: Any) -> bool:
    return answer is not None


@dataclass(frozen=True, slots=True)
class AgentCallbacks:
    """Runs the callbacks before and after one agent. Both methods raise CallbackRaised."""

    hooks: Hooks
    contexts: Contexts

    @property
    def _is_first(self) -> bool:
        return self.contexts.work.index == 0

    async def enter(self) -> ModelReply:
        """Run the callbacks before the agent and, for the first agent, those before the invocation.

        Return the agent spec and the callbacks' result.

        Raises:
            UserMessageChanged: A plugin tried to replace the user message.
        """
        agent = self.hooks.agent
        spec: AgentSpec | None = create_agent_spec(agent, self.hooks.plugins, first=self._is_first)
        if spec == self.contexts.log.state.runs[self.contexts.work.index].shape:
            spec = None  # the workflow has it
        if not self.hooks.plugins and not self.hooks.has("before_agent_callback"):
            return ModelReply(shape=spec)
        context = self.contexts.callback("agent")
        if self._is_first and self.hooks.plugins:
            params = {"invocation_context": context, "user_message": context.user_content}
            if await self.hooks.run_plugins("on_user_message_callback", **params) is not None:
                raise UserMessageChanged(
                    "A plugin's `on_user_message_callback` returned a message, but the user message is already "
                    "recorded. Return None, and change the request in `before_model_callback` instead."
                )
            answer = await self.hooks.run_plugins("before_run_callback", invocation_context=context)
            if answer:
                await self.hooks.run_plugins("after_run_callback", invocation_context=context)
                before = _build_said(
                    _parse_content(answer, "before_run_callback"), collect_actions(context, "before_run_callback")
                )
                return ModelReply(shape=spec, before=before, skipped=True, ends_invocation=True)
        name = "before_agent_callback"
        content = _parse_content(await self.hooks.around_agent(name, context), name)
        if content is not None:
            self._apply_output_key(context.state, content)
            # If a callback answered for the agent, only the plugins' `after_run_callback` still runs.
            has_after_run = self._is_first and self.hooks.has("after_run_callback")
            spec = (spec or AgentSpec(name=agent.name)).model_copy(update={"after": has_after_run})
        return ModelReply(
            shape=spec, before=_build_said(content, collect_actions(context, name)), skipped=content is not None
        )

    async def leave(self) -> CallbackResult | None:
        """Run the callbacks after the agent and, for the first agent, those after the invocation.

        Return their content and actions, or None if there are none. If a callback answered for the agent, the callbacks
        after the agent do not run.
        """
        name, answer = "after_agent_callback", None
        context = self.contexts.callback("agent")
        if not self.contexts.work.spoken_for:
            answer = await self.hooks.around_agent(name, context)
        if self._is_first:
            await self.hooks.run_plugins("after_run_callback", invocation_context=context)
        return _build_said(_parse_content(answer, name), collect_actions(context, name))

    def _apply_output_key(self, state: Any, content: JsonObject) -> None:
        """Store the text that callbacks returned in place of an LLM agent's under the agent's `output_key`, if any.

        As for a model's reply, the text is parsed if the agent has an output schema.
        """
        agent, text = self.hooks.agent, text_of(content)
        if not (isinstance(agent, LlmAgent) and agent.output_key and text):
            return
        if not agent.output_schema:
            state[agent.output_key] = text
        elif text.strip():
            try:
                state[agent.output_key] = parse_answer_text(agent.output_schema, text)
            except ValueError as error:
                raise CallbackRaised("before_agent_callback", error) from error


def _parse_content(answer: Any, name: str) -> JsonObject | None:
    """Convert a callback's return value to a Content in JSON. Return None if the value is None or empty.

    Raises:
        CallbackRaised: The value is not a Content, or cannot be converted to JSON.
    """
    try:
        return content_to_json(answer) if answer else None
    except NotJson as error:
        raise CallbackRaised(name, error) from error
    except TypeError:
        raise CallbackRaised(name, WrongReturnType(answer, "a genai Content")) from None


def _build_said(content: JsonObject | None, actions: EventActions) -> CallbackResult | None:
    if content is None and actions == NO_ACTIONS:
        return None
    return CallbackResult(content=content, actions=None if actions == NO_ACTIONS else actions)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one run of a tool."""

    context: ToolContext
    value: Any = None
    """The unchanged value that the tool returned."""
    raised: BaseException | None = None
    outcome: ToolOutcome | None = None
    """The outcome to record instead of the value, if any. Error callbacks may replace it if `raised` is set. If it is
    not set, the tool was not allowed to run, and the outcome is final."""
    repeatable: bool = False
    """Whether the tool may run again if the call has retries left."""
    ran: bool = True
    """False if the tool does not exist. In that case, no `after_tool` callbacks run."""


async def run_with_callbacks(
    hooks: Hooks,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    run: Callable[[], Awaitable[Attempt]],
) -> ToolOutcome:
    """Run a tool with its callbacks, which may modify `args` and modify or replace the tool's result.

    If a callback raises an exception, the outcome is an error. If the tool ran before, the error says so and contains
    the tool's result.
    """
    attempt: Attempt | None = None
    try:
        answer = await run_before_tool(hooks, tool, args, context, long_running=tool.is_long_running)
        if answer is not None:
            return answer
        attempt = await run()
        value, context = attempt.value, attempt.context
        if attempt.raised is not None:
            value = await hooks.around_tool("on_tool_error_callback", tool, args, context, error=attempt.raised)
        if attempt.outcome is not None and value is None:
            return attempt.outcome
        if not attempt.ran:
            return await convert_result(value, context=context)
        return await _run_after_tool(hooks, tool, args, context, value, long_running=tool.is_long_running)
    except CallbackRaised as error:
        if attempt is None or not attempt.ran:
            return build_error_outcome(tool, error.cause, context)
        outcome = attempt.outcome or await convert_result(attempt.value, context=context)
        return _build_ran_outcome(tool, error, context, outcome)


async def run_after_agent(
    hooks: Hooks, tool: BaseTool, args: JsonObject, context: ToolContext, child: ToolOutcome
) -> ToolOutcome:
    """Run the callbacks on the outcome of an agent that was called as a tool, and return the resulting outcome.

    If the agent failed, the error callbacks run first, and the result callbacks run only if one of these returns a
    replacement.
    """
    response = child.response or {}
    # An AgentTool's text is wrapped in an object as `result`. Callbacks receive only the text, as in ADK.
    value: Any = response["result"] if response.keys() == {"result"} else response
    try:
        if child.error_type is not None:
            error = RuntimeError(str(response.get("error", "")))
            value = await hooks.around_tool("on_tool_error_callback", tool, args, context, error=error)
            if value is None:
                return child
        replacement = await hooks.around_tool("after_tool_callback", tool, args, context, result=value)
        outcome = callback_outcome = await convert_result(
            value if replacement is None else replacement, context=context
        )
        if replacement is None and child.error_type is None:
            outcome = child
    except CallbackRaised as raised:
        outcome = callback_outcome = _build_ran_outcome(tool, raised, context, child)
    actions = [result.actions for result in (child, callback_outcome) if result.actions is not None]
    return outcome.model_copy(update={"actions": merge_actions(actions) if actions else None})


async def run_before_tool(
    hooks: Hooks, tool: BaseTool, args: JsonObject, context: ToolContext, *, long_running: bool = False
) -> ToolOutcome | None:
    """Return the outcome that a `before_tool` callback provides in place of the tool's, or None if the tool should run.

    If there is such an outcome, the `after_tool` callbacks run on it and may replace it.

    Raises:
        CallbackRaised: A callback before or after the tool raised an exception.
    """
    value = await hooks.around_tool("before_tool_callback", tool, args, context)
    return (
        None if value is None else await _run_after_tool(hooks, tool, args, context, value, long_running=long_running)
    )


async def _run_after_tool(
    hooks: Hooks, tool: BaseTool, args: JsonObject, context: ToolContext, value: Any, *, long_running: bool
) -> ToolOutcome:
    replacement = await hooks.around_tool("after_tool_callback", tool, args, context, result=value)
    return await convert_result(
        value if replacement is None else replacement, context=context, long_running=long_running
    )


def build_error_outcome(tool: BaseTool, error: BaseException, context: ToolContext) -> ToolOutcome:
    """Return the outcome of a call for which the tool or a callback raised an exception.

    The outcome is fatal if the tool's `on_error` is "raise".
    """
    return create_failure_outcome(error, context=context).model_copy(update={"fatal": tool.on_error == "raise"})


def _build_ran_outcome(tool: BaseTool, error: CallbackRaised, context: ToolContext, ran: ToolOutcome) -> ToolOutcome:
    """Return the outcome of a call for which a callback raised an exception after the tool had the outcome `ran`."""
    if ran.error_type is None:
        about, fatal = f"{error.callback} raised", tool.on_error == "raise"
        return create_ran_outcome(about, error.cause, ran.response, context=context, fatal=fatal)
    # The tool's own error says whether it took effect.
    outcome = build_error_outcome(tool, error.cause, context)
    return outcome.model_copy(update={"response": {**(outcome.response or {}), "result": ran.response}})


def add_transfer(outcome: ToolOutcome, hooks: Hooks) -> ToolOutcome:
    """If the outcome transfers to an agent, add that agent's spec, or return an error if this is not allowed."""
    agent, name = hooks.agent, outcome.actions.transfer_to_agent if outcome.actions else None
    if outcome.actions is None or name is None or not isinstance(agent, LlmAgent):
        return outcome
    try:
        target = transfer_target(agent, name)
    except ValueError as error:
        response: JsonObject = {"error": describe_error(error), "error_type": "ValueError"}
        if outcome.response not in (None, {"result": None}):
            response["result"] = outcome.response
        actions = outcome.actions.model_copy(update={"transfer_to_agent": None, "transfer_reason": None})
        return outcome.model_copy(update={"response": response, "error_type": "ValueError", "actions": actions})
    return outcome.model_copy(update={"transfer": create_agent_spec(target, hooks.plugins)})
