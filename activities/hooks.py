"""The callbacks around agents, models and tools: those of the app's plugins first, then the agent's own.

Within a kind the first that answers ends the chain. Sources: adk-semantics 1.6 and 9.4.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import structlog

from waystation.agents.base_agent import BaseAgent, listed
from waystation.agents.llm_agent import CALLBACKS, LlmAgent
from waystation.core.errors import NotJson, StoreFailed, WaystationError
from waystation.core.event import EventActions
from waystation.core.payload import JsonObject
from waystation.core.settings import ActivitySettings
from waystation.models import LlmResponse
from waystation.models.llm_request import LlmRequest
from waystation.plugins.base_plugin import BasePlugin, overrides
from waystation.tools.base_tool import BaseTool
from waystation.tools.functions import invoke
from waystation.tools.places import place_of
from waystation.tools.tool_context import CallbackContext, NotAwaited, ToolContext

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
    """The callbacks that accompany one agent."""

    def __init__(self, agent: BaseAgent, plugins: Sequence[BasePlugin], timeout: timedelta = CALLBACK_TIMEOUT) -> None:
        """`timeout` is that of one callback."""
        self.agent, self.plugins, self._timeout = agent, plugins, timeout

    def has(self, *names: str) -> bool:
        """Whether there is any callback of these names, such as `before_tool_callback`."""
        return any(
            listed(getattr(self.agent, name, None)) or any(overrides(plugin, name) for plugin in self.plugins)
            for name in names
        )

    @property
    def around_tools(self) -> bool:
        """Whether there is any callback around tools."""
        return self.has("before_tool_callback", "after_tool_callback", "on_tool_error_callback")

    @property
    def around_models(self) -> bool:
        """Whether there is any callback around models."""
        return self.has("before_model_callback", "after_model_callback", "on_model_error_callback")

    # All of these raise CallbackRaised.

    async def run_hook(self, name: str, **given: Any) -> Any:
        """Run a hook that only plugins have, around a whole invocation."""
        return await self._plugins(name, given)

    async def around_agent(self, name: str, context: CallbackContext) -> Any:
        """Run the callbacks before or after the agent; return the Content that one of them returned."""
        said = await self._plugins(name, {"agent": self.agent, "callback_context": context})
        return said or await self._own(name, {"callback_context": context}, until=bool)

    async def before_model(self, context: CallbackContext, request: LlmRequest) -> LlmResponse | None:
        """Run the callbacks before a model call; return a response that stands for the model's."""
        return await self._model("before_model_callback", callback_context=context, llm_request=request)

    async def after_model(self, context: CallbackContext, response: LlmResponse) -> LlmResponse | None:
        """Run the callbacks after a model call; return a response that replaces the model's."""
        return await self._model("after_model_callback", callback_context=context, llm_response=response)

    async def on_model_error(
        self, context: CallbackContext, request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Run the callbacks for a model call that raised; return a response that replaces the error."""
        given = {"callback_context": context, "llm_request": request, "error": error}
        return await self._model("on_model_error_callback", **given)

    async def before_tool(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> Any:
        """Run the callbacks before a tool, which may change `args`; anything but None stands for its result."""
        return await self._tool("before_tool_callback", tool, args, context)

    async def after_tool(self, tool: BaseTool, args: JsonObject, context: ToolContext, result: Any) -> Any:
        """Run the callbacks after a tool; anything but None replaces its result."""
        return await self._tool("after_tool_callback", tool, args, context, result=result)

    async def on_tool_error(self, tool: BaseTool, args: JsonObject, context: ToolContext, error: BaseException) -> Any:
        """Run the callbacks for a tool that raised; anything but None replaces the error."""
        return await self._tool("on_tool_error_callback", tool, args, context, error=error)

    async def tool_cancelled(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> None:
        """Tell every error callback that a call was cancelled, so that it can clean up; what they say is ignored."""
        if not self.has("on_tool_error_callback"):
            return
        error = asyncio.CancelledError()
        given = {"tool": tool, "args": args, "tool_context": context, "error": error}
        told = {"tool": tool, "tool_args": args, "tool_context": context, "error": error}
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(CLEANUP_S):
                for plugin in self.plugins:
                    await self._cleaned(plugin.on_tool_error_callback, told)
                for callback in listed(getattr(self.agent, "on_tool_error_callback", None)):
                    await self._cleaned(callback, given)

    async def _cleaned(self, callback: Callable[..., Any], given: JsonObject) -> None:
        try:
            await _called(callback, given, self._timeout)
        except Exception as error:  # noqa: BLE001  # author's code; the others have to clean up too
            events.warning("callback.failed", callback="on_tool_error_callback", error_type=type(error).__name__)

    async def _model(self, name: str, **given: Any) -> LlmResponse | None:
        answer = await self._plugins(name, given) or await self._own(name, given, until=bool)
        if answer is not None and not isinstance(answer, LlmResponse):
            raise CallbackRaised(name, Misreturned(answer, "an LlmResponse"))
        return answer

    async def _tool(self, name: str, tool: BaseTool, args: JsonObject, context: ToolContext, **more: Any) -> Any:
        answer = await self._plugins(name, {"tool": tool, "tool_args": args, "tool_context": context, **more})
        if answer is not None or not isinstance(self.agent, LlmAgent):
            return answer
        more = {"tool_response" if key == "result" else key: value for key, value in more.items()}
        return await self._own(name, {"tool": tool, "args": args, "tool_context": context, **more}, until=_is_answer)

    async def _plugins(self, name: str, given: JsonObject) -> Any:
        for plugin in self.plugins:
            if not overrides(plugin, name):
                continue
            try:
                answer = await _called(getattr(plugin, name), given, self._timeout)
            except Exception as error:
                raise CallbackRaised(name, error, plugin.name) from error
            if answer is not None:
                return answer
        return None

    async def _own(self, name: str, given: JsonObject, *, until: Callable[[Any], bool]) -> Any:
        for callback in listed(getattr(self.agent, name, None)):
            try:
                answer = await _called(callback, given, self._timeout, CALLBACKS[name])
            except Exception as error:
                raise CallbackRaised(name, error) from error
            if until(answer):
                return answer
        return None


async def _called(callback: Callable[..., Any], given: JsonObject, limit: timedelta, order: Sequence[str] = ()) -> Any:
    async with asyncio.timeout(limit.total_seconds()):
        return await _invoked(callback, given, order)


async def _invoked(callback: Callable[..., Any], given: JsonObject, order: Sequence[str]) -> Any:
    """Call a callback by keyword; or by position, when its parameters have other names, which is ADK's rule too."""
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # a builtin
        answer = callback(**given)
        return await answer if inspect.isawaitable(answer) else answer
    try:
        bound = signature.bind(**given)
    except TypeError:
        if not order:
            raise
        bound = signature.bind(*(given[name] for name in order))
    return await invoke(callback, bound)


def _is_answer(answer: Any) -> bool:
    return answer is not None
