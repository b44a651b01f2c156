"""A tool for agents that calls a tool on an MCP server."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CallToolResult, Tool
from pydantic import BaseModel, ValidationError

from waystation.core.contract import Effect
from waystation.core.payload import JsonObject
from waystation.tools import BaseTool, ReadonlyContext, ToolContext, cacheable, declaration
from waystation.tools.authorization import PENDING
from waystation.tools.mcp_tool.mcp_session_manager import OPAQUE, McpSessions
from waystation.tools.outcome import FailedAfterEffect, OutcomeUnknown, TooLarge

HeadersFor = Callable[[ReadonlyContext], Awaitable[Mapping[str, str] | None]]
"""Returns the request headers for a context, or None after asking the user for a missing credential."""


class McpTool(BaseTool):
    """A tool that an MCP server runs. Created by `McpToolset`."""

    def __init__(
        self,
        *,
        mcp_tool: Tool,
        sessions: McpSessions,
        headers_for: HeadersFor,
        require_confirmation: bool | Callable[..., Any] = False,
        progress_callback: Callable[..., Any] | None = None,
        effect: Effect | None = None,
    ) -> None:
        super().__init__(name=mcp_tool.name, description=mcp_tool.description or "")
        self.raw_mcp_tool = mcp_tool
        self._sessions = sessions
        self._headers_for = headers_for
        self.require_confirmation = require_confirmation
        self._progress_callback = progress_callback
        self.effect = effect or effect_of(mcp_tool)

    @cacheable
    def _get_declaration(self) -> JsonObject:
        declared = declaration(self.name, self.description, self.raw_mcp_tool.input_schema)
        if self.raw_mcp_tool.output_schema is not None:
            declared["responseJsonSchema"] = self.raw_mcp_tool.output_schema
        return declared

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the tool on the server. Return its result, or PENDING if the user must log in first.

        Raises:
            McpConnectionError: The server is unreachable.
            OutcomeUnknown: The connection is broken, and the call may have been processed.
            McpCallFailed: The server rejected the call.
            FailedAfterEffect: The server processed the call, but its result is invalid or too large.
        """
        progress = await self._progress(tool_context)

        async def request(client: Client) -> CallToolResult:
            return await client.call_tool(self.raw_mcp_tool.name, args, progress_callback=progress)

        headers = await self._headers_for(tool_context)
        if headers is None:
            return PENDING
        try:
            result = await self._sessions.call(request, headers, repeatable=self.effect in ("read", "repeatable"))
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"The connection to the MCP server broke while `{self.name}` ran. Whether it took effect is unknown; "
                "it was not repeated."
            ) from error
        except MCPError as error:
            raise McpCallFailed(f"MCP tool execution failed: {error.message}") from error
        except (TooLarge, ValidationError) as error:
            raise FailedAfterEffect(error) from error
        # In a thread, because a result with 100,000 parts takes a second.
        return await asyncio.to_thread(plain_result, result)

    async def _progress(self, context: ToolContext) -> ProgressFnT:
        """Return a progress handler that sends a heartbeat and then calls the user's callback."""
        callback = self._progress_callback
        if callback is not None and not inspect.iscoroutinefunction(callback):
            callback = callback(self.name, callback_context=context)  # a factory, like ADK's ProgressCallbackFactory

        async def report(progress: float, total: float | None, message: str | None) -> None:
            context.heartbeat()
            if callback is not None:
                await callback(progress, total, message)

        return report


class McpCallFailed(Exception):
    """The server rejected a call."""


def effect_of(tool: Tool) -> Effect:
    """Return the effect class from the tool's MCP annotations. As in MCP, missing hints mean the worst case."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "read"
    if hints is not None and hints.idempotent_hint:
        return "repeatable"
    return "once"


def plain_result(result: BaseModel) -> JsonObject:
    """Return a server's result as JSON. As in ADK, keys are named as in the protocol, except that `_meta` is `meta`."""
    dumped: JsonObject = _rename_meta(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    dumped.pop("resultType", None)
    if (structured := getattr(result, "structured_content", None)) is not None:
        dumped["structuredContent"] = structured  # pydantic would replace NaN with null
    return dumped


def _rename_meta(value: Any) -> Any:
    if isinstance(value, list):
        return [_rename_meta(item) for item in value]
    if not isinstance(value, dict):
        return value
    # The server chooses the keys inside these objects, so do not rename them.
    return {
        ("meta" if key == "_meta" else key): item if key in OPAQUE else _rename_meta(item)
        for key, item in value.items()
    }


MCPTool = McpTool
"""ADK's older name."""
