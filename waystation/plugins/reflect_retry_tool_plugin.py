"""Have the model reflect on a failed tool call and try again.

The failures are counted in `temp:` state, so that the count is right whichever worker runs the next call.
"""

import asyncio
import enum
import json
from typing import Any

from waystation.plugins import BasePlugin

REFLECTED = "ERROR_HANDLED_BY_REFLECT_AND_RETRY_PLUGIN"
"""ADK's wire literal: `response_type` of an answer that this plugin gave."""

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
    """Over what failures are counted."""

    INVOCATION = "invocation"
    GLOBAL = "global"
    """Not supported: workers share no memory."""


class ReflectAndRetryToolPlugin(BasePlugin):
    """Answers a tool's exception with guidance, `max_retries` times in a row. Source: adk-semantics 1.7."""

    def __init__(
        self,
        name: str = "reflect_retry_tool_plugin",
        max_retries: int = 3,
        throw_exception_if_retry_exceeded: bool = True,
        tracking_scope: TrackingScope = TrackingScope.INVOCATION,
    ) -> None:
        """After more failures than `max_retries` the exception takes its course, or the model is told to stop.

        Raises:
            ValueError: `max_retries` is negative, or failures shall be counted over all invocations.
        """
        super().__init__(name)
        if max_retries < 0:
            raise ValueError("max_retries must be a non-negative integer.")
        if tracking_scope is not TrackingScope.INVOCATION:
            raise ValueError("Failures are counted for each invocation; workers share no memory to count more.")
        self.max_retries = max_retries
        self.throw_exception_if_retry_exceeded = throw_exception_if_retry_exceeded

    async def after_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any) -> Any:
        """Look for an error in a result; a good one resets the count."""
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
        """Return the error that a result stands for, or None. Override it for tools that return their errors."""
        return None

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: Exception
    ) -> Any:
        """Answer an exception with guidance."""
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
