"""A plugin that explains a failed tool call to the model, so that the model can correct the call.

Failures are counted in `temp:` state, so the count is correct even if several workers run the calls.
"""

import asyncio
import enum
import json
from typing import Any

from waystation.plugins import BasePlugin

REFLECTED = "ERROR_HANDLED_BY_REFLECT_AND_RETRY_PLUGIN"
"""The `response_type` of this plugin's responses, which is the same as in ADK."""

_TRY_AGAIN = """\
The call of `{tool}` failed, attempt {count} of {limit}.

Error: {error}
Arguments: {args}

Do not repeat the same call. Check the arguments against the tool's parameters, whether an earlier step is missing, \
whether another tool suits better, and whether the task can be done in smaller steps; then try a corrected call."""
_GIVE_UP = """\
`{tool}` failed {limit} times in a row; do not call it again for this task.

Last error: {error}
Last arguments: {args}

Try a different way, or tell the user that it cannot be done."""


class TrackingScope(enum.Enum):
    """The scope of the failure count."""

    INVOCATION = "invocation"
    GLOBAL = "global"
    """Not supported, because workers do not share memory."""


class ReflectAndRetryToolPlugin(BasePlugin):
    """Replaces a tool's exception with guidance for the model, up to `max_retries` times in a row."""

    def __init__(
        self,
        name: str = "reflect_retry_tool_plugin",
        max_retries: int = 3,
        throw_exception_if_retry_exceeded: bool = True,
        tracking_scope: TrackingScope = TrackingScope.INVOCATION,
    ) -> None:
        """Configure the plugin.

        After `max_retries` failures of a tool in a row, the next failure is raised as an exception. If
        `throw_exception_if_retry_exceeded` is False, the model is instructed to stop instead.

        Raises:
            ValueError: `max_retries` is negative, or `tracking_scope` is GLOBAL.
        """
        super().__init__(name)
        if max_retries < 0:
            raise ValueError("max_retries must be a non-negative integer.")
        if tracking_scope is not TrackingScope.INVOCATION:
            raise ValueError("Only TrackingScope.INVOCATION is supported, because workers do not share memory.")
        self.max_retries = max_retries
        self.throw_exception_if_retry_exceeded = throw_exception_if_retry_exceeded

    async def after_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any) -> Any:
        """Treat a result that contains an error like an exception. Any other result resets the failure count."""
        if isinstance(result, dict) and result.get("response_type") == REFLECTED:
            return None
        error = await self.extract_error_from_result(
            tool=tool, tool_args=tool_args, tool_context=tool_context, result=result
        )
        if error:
            return self._reflect(tool, tool_args, tool_context, error)
        tool_context.state.pop(self._key(tool), None)
        return None

    async def extract_error_from_result(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any
    ) -> Any:
        """Return the error that a result contains, or None.

        The default implementation always returns None. Override it for tools that return errors.
        """
        return None

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: Exception
    ) -> Any:
        """Replace an exception with guidance for the model, or raise it after too many failures; see `__init__`."""
        if isinstance(error, asyncio.CancelledError):
            return None
        return self._reflect(tool, tool_args, tool_context, error)

    def _reflect(self, tool: Any, args: dict[str, Any], context: Any, error: Any) -> dict[str, Any]:
        count = context.state.get(self._key(tool), 0) + 1
        context.state[self._key(tool)] = count
        again = count <= self.max_retries
        if not again and self.throw_exception_if_retry_exceeded:
            raise error if isinstance(error, Exception) else RuntimeError(str(error))
        text = (_TRY_AGAIN if again else _GIVE_UP).format(
            tool=tool.name,
            count=count,
            limit=self.max_retries,
            error=f"{type(error).__name__}: {error}" if isinstance(error, Exception) else error,
            args=json.dumps(args, default=str),
        )
        return {
            "response_type": REFLECTED,
            "error_type": type(error).__name__ if isinstance(error, Exception) else "ToolError",
            "error_details": str(error),
            "retry_count": min(count, self.max_retries),
            "reflection_guidance": text,
        }

    def _key(self, tool: Any) -> str:
        return f"temp:{self.name}:{tool.name}"
