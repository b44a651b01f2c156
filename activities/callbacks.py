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
from waystation.core.errors import NotJson, StoreFailed, WaystationError
from waystation.core.event import EventActions
from waystation.core.payload import JsonObject
from waystation.core.settings import ActivitySettings
from waystation.models import LlmResponse
from waystation.plugins.base_plugin import BasePlugin, overrides
from waystation.tools import BaseTool, CallbackContext, ToolContext
from waystation.tools.agent_mistakes import CALLBACKS
from waystation.tools.awaited import NotAwaited
from waystation.tools.calling import invoke
from waystation.tools.places import place_of

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
        return await self._first(name, bool, agent=self.agent, callback_context=context)

    async def around_model(self, name: str, context: CallbackContext, **params: Any) -> LlmResponse | None:
        """Run the callbacks of a kind around a model call; return the response that one of them gave instead."""
        answer = await self._first(name, bool, callback_context=context, **params)
        if answer is not None and not isinstance(answer, LlmResponse):
            raise CallbackRaised(name, Misreturned(answer, "an LlmResponse"))
        return answer

    async def around_tool(
        self, name: str, tool: BaseTool, args: JsonObject, context: ToolContext, **params: Any
    ) -> Any:
        """Run the callbacks of a kind around a tool call, which may change `args`; return what one of them gave instead
        of the tool's result."""
        return await self._first(name, _is_given, tool=tool, tool_args=args, tool_context=context, **params)

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

    async def _first(self, name: str, is_answer: Callable[[Any], bool], **params: Any) -> Any:
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
