"""One tool of a server, as a tool of an agent. Source: adk-semantics 10."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CallToolResult, Tool
from pydantic import BaseModel

from waystation.agents import ReadonlyContext
from waystation.core import Effect, JsonObject
from waystation.tools import BaseTool, ToolContext, declaration, settled
from waystation.tools.authorization import PENDING
from waystation.tools.mcp_tool.mcp_session_manager import McpSessions, OutcomeUnknown

HeadersFor = Callable[[ReadonlyContext], Awaitable[Mapping[str, str] | None]]
"""Returns the headers that requests for this context carry; None when the user has been asked for a credential."""


class McpTool(BaseTool):
    """A tool that a server carries out. It is made by `McpToolset`."""

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

    @settled
    def _get_declaration(self) -> JsonObject:
        declared = declaration(self.name, self.description, self.raw_mcp_tool.input_schema)
        if self.raw_mcp_tool.output_schema is not None:
            declared["responseJsonSchema"] = self.raw_mcp_tool.output_schema
        return declared

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Have the server carry out the call, and return its result as it came, or that the user has to log in first.

        Raises:
            McpConnectionError: The server cannot be reached, or may or may not have carried out the call.
            MCPError: The server refused the call.
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
        return plain_result(result)

    async def _progress(self, context: ToolContext) -> ProgressFnT:
        """Return what is told of the tool's progress: the author's callback, after a heartbeat."""
        told = self._progress_callback
        if told is not None and not inspect.iscoroutinefunction(told):
            told = told(self.name, callback_context=context)  # a factory, see ADK's ProgressCallbackFactory

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            context.heartbeat()
            if told is not None:
                await told(progress, total, message)

        return tell


class McpCallFailed(Exception):
    """A server refused a call."""


def effect_of(tool: Tool) -> Effect:
    """Return what a repetition of a tool does, as its server tells; what it does not tell is taken for the worst.

    Source: the defaults of MCP's tool annotations.
    """
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "read"
    if hints is not None and hints.idempotent_hint:
        return "repeatable"
    return "once"


def plain_result(result: BaseModel) -> JsonObject:
    """Return a result of a server with the names that ADK uses: the protocol's, but `meta` for `_meta`."""
    dumped: JsonObject = _named(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    dumped.pop("resultType", None)
    return dumped


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(item) for item in value]
    if not isinstance(value, dict):
        return value
    # What a server put into these is its own, whatever the keys are called.
    opaque = {"_meta", "structuredContent", "inputSchema", "outputSchema"}
    return {("meta" if key == "_meta" else key): item if key in opaque else _named(item) for key, item in value.items()}


MCPTool = McpTool
"""ADK's older name."""
