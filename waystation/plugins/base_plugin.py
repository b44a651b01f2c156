"""Callbacks that accompany every agent of an app.

They run in activities, before those of the agent itself; the first of a kind that answers ends the chain.
Source: adk-semantics 9.4.
"""

import inspect
from collections.abc import Iterator
from typing import Any

NO_EVENTS_TO_CHANGE = (
    "cannot be carried out: events are a function of what is recorded, so nothing can change one, and a reader of the "
    "history sees them without any plugin. Watch invocations with a client, or use the other callbacks."
)


class BasePlugin:
    """Subclass it, override what is wanted, and list an instance in `App(plugins=[…])`. All hooks are coroutines."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class that wants to change events.

        Raises:
            TypeError: It does.
        """
        super().__init_subclass__(**kwargs)
        if "on_event_callback" in cls.__dict__:
            raise TypeError(f"`{cls.__name__}.on_event_callback` {NO_EVENTS_TO_CHANGE}")

    async def on_user_message_callback(self, *, invocation_context: Any, user_message: Any) -> Any:
        """See the message that starts an invocation. Returning anything but None fails it: the message is recorded."""

    async def before_run_callback(self, *, invocation_context: Any) -> Any:
        """Run before the first agent; a Content that is returned is said, and the invocation ends."""

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """Run when the agent that the invocation began with is done."""

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> Any:
        """Run before an agent; a Content that is returned is said instead of running it."""

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> Any:
        """Run after an agent; a Content that is returned is said too."""

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        """Run before a model call; an LlmResponse that is returned stands for the model's."""

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> Any:
        """Run after a model call; an LlmResponse that is returned replaces the model's."""

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Exception) -> Any:
        """Run when a model call raised; an LlmResponse that is returned replaces the error."""

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        """Run before a tool; anything but None stands for its result."""

    async def after_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any) -> Any:
        """Run after a tool; anything but None replaces its result."""

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: Exception
    ) -> Any:
        """Run when a tool raised; anything but None replaces the error."""

    async def close(self) -> None:
        """Release what the plugin holds."""


def overrides(plugin: BasePlugin, hook: str) -> bool:
    """Whether a plugin does anything at this hook."""
    return getattr(type(plugin), hook, None) is not getattr(BasePlugin, hook, None) or hook in vars(plugin)


def misdeclared(plugin: BasePlugin) -> Iterator[str]:
    """Yield, one sentence each, which hooks of a plugin do not take what they are given, which is by keyword."""
    for name, hook in vars(BasePlugin).items():
        if name.startswith("_") or not inspect.iscoroutinefunction(hook) or not overrides(plugin, name):
            continue
        given = [parameter for parameter in inspect.signature(hook).parameters if parameter != "self"]
        taken = inspect.signature(getattr(plugin, name))
        try:
            taken.bind(**dict.fromkeys(given))
        except TypeError:
            yield f"`{type(plugin).__name__}.{name}` takes {taken}, but is given ({', '.join(given)}) by keyword."
