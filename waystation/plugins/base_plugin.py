"""Plugins, which are callbacks for all agents of an app.

Plugins run in activities, before the agent's own callbacks. The first callback that returns a value other than None
ends the chain.
"""

import inspect
from collections.abc import Iterator
from typing import Any

NO_EVENTS_TO_CHANGE = (
    "is not supported: events are computed from the recorded history, so a plugin cannot change them. Watch "
    "invocations with a client, or use the other callbacks."
)


class BasePlugin:
    """Base class of plugins. Override its async callbacks, and pass an instance to `App(plugins=[…])`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Reject subclasses that override `on_event_callback`.

        Raises:
            TypeError: The subclass defines that method.
        """
        super().__init_subclass__(**kwargs)
        if "on_event_callback" in cls.__dict__:
            raise TypeError(f"`{cls.__name__}.on_event_callback` {NO_EVENTS_TO_CHANGE}")

    async def on_user_message_callback(self, *, invocation_context: Any, user_message: Any) -> Any:
        """Run before the invocation. Any result other than None fails it, because the message is already recorded."""

    async def before_run_callback(self, *, invocation_context: Any) -> Any:
        """Run before the first agent. A returned Content becomes the answer and ends the invocation."""

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """Run after the invocation's first agent has finished, or after `before_run_callback` returned an answer."""

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> Any:
        """Run before an agent. A returned Content replaces the agent's run."""

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> Any:
        """Run after an agent. A returned Content is added to its answer."""

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        """Run before a model call. A returned LlmResponse replaces the model call."""

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> Any:
        """Run after a model call. A returned LlmResponse replaces the model's response."""

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Exception) -> Any:
        """Run after a model call has raised an error. A returned LlmResponse replaces the error."""

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        """Run before a tool call. A result other than None replaces the call."""

    async def after_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any) -> Any:
        """Run after a tool call. A result other than None replaces the tool's result."""

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: Exception
    ) -> Any:
        """Run after a tool call has raised an error. A result other than None replaces the error."""

    async def close(self) -> None:
        """Release the plugin's resources."""


def overrides_callback(plugin: BasePlugin, hook: str) -> bool:
    """Return whether a plugin overrides a callback."""
    return getattr(type(plugin), hook, None) is not getattr(BasePlugin, hook, None) or hook in vars(plugin)


def wrong_callbacks(plugin: BasePlugin) -> Iterator[str]:
    """Yield a sentence for each callback that a plugin overrides with the wrong parameters."""
    for name, hook in vars(BasePlugin).items():
        if name.startswith("_") or not inspect.iscoroutinefunction(hook) or not overrides_callback(plugin, name):
            continue
        arguments = [parameter for parameter in inspect.signature(hook).parameters if parameter != "self"]
        signature = inspect.signature(getattr(plugin, name))
        try:
            signature.bind(**dict.fromkeys(arguments))
        except TypeError:
            yield f"`{type(plugin).__name__}.{name}` takes {signature}; use the parameters ({', '.join(arguments)})."
