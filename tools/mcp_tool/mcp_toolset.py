"""A toolset that offers the tools of an MCP server."""

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TextIO, TypeVar

import structlog
from cachetools import TTLCache
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import ListToolsResult, Resource, SamplingCapability, Tool, ToolListChangedNotification

from waystation.core.contract import Effect
from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
from waystation.tools import (
    BaseTool,
    BaseToolset,
    ReadonlyContext,
    ToolPredicate,
    authentication_problems,
    authorize,
    call_header_provider,
)
from waystation.tools.mcp_tool.mcp_session_manager import (
    MAX_TOOLS,
    ConnectionParams,
    McpConnectionError,
    McpSessions,
    SseConnectionParams,
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
    parameter_problems,
    place_of,
)
from waystation.tools.mcp_tool.mcp_tool import McpTool, plain_result

__all__ = [
    "MCPToolset",
    "McpToolset",
    "SseConnectionParams",
    "StdioConnectionParams",
    "StdioServerParameters",
    "StreamableHTTPConnectionParams",
]

log = structlog.get_logger(__name__)

LISTING_S = 60.0
"""Default time in seconds for which an invocation caches the list of the server's tools."""
MAX_LISTINGS = 64
MAX_PAGES = 100
HTTP_ERROR = "Server returned an error response"
"""The message with which `mcp` reports an HTTP status of 400 or above, except 404, without a JSON-RPC error."""

Result = TypeVar("Result")


class McpToolset(BaseToolset):
    """The tools of one MCP server. Connects to the server on first use.

    All calls in this process share sessions, which are closed when the worker stops. A broken session is replaced. A
    tool call that may have reached the server is repeated only if its `effect` says that this is safe.

    Args:
        connection_params: How to connect to the server.
        tool_filter: Names of the tools to offer, without the prefix, or a function that decides for each tool.
        tool_name_prefix: Prefix for all tool names. An underscore separates the prefix and the name.
        tool_list_cache_ttl_seconds: How long to cache the list of tools. If set, all invocations share the cached
            list. By default, each invocation fetches the list itself.
        errlog: Receives the standard error of a server program. Defaults to `sys.stderr`.
        auth_scheme: The server's security scheme.
        auth_credential: The credential for the server. It must be one that is sent in a header.
        credential_key: Key under which the credential service stores the user's credential.
        require_confirmation: Whether an approver must confirm each call, or a function that decides this for a call.
            The function receives the arguments that match its parameter names.
        header_provider: A sync or async function that returns the headers for a context. Each distinct set of headers
            has its own session.
        progress_callback: An async function that is called with progress, total and message, or a factory that is
            called with the tool's name and `callback_context` and returns such a function.
        sampling_callback: Handles the server's requests to call a model.
        sampling_capabilities: The capabilities of `sampling_callback`.
        elicitation_callback: Handles the server's requests for input from the user.
        effect: What happens if a call runs twice, for all tools or by tool name. Defaults to what the tool's
            annotations say, or to `once` if it does not have annotations.
        optional: Whether the model is called without these tools while the server is unreachable. By default, the
            invocation is held.

    Raises:
        ValueError: `connection_params` is None, or `tool_list_cache_ttl_seconds` is not positive.
    """

    def __init__(
        self,
        *,
        connection_params: ConnectionParams | StdioServerParameters | None,
        tool_filter: ToolPredicate | Collection[str] | None = None,
        tool_name_prefix: str | None = None,
        tool_list_cache_ttl_seconds: float | None = None,
        errlog: TextIO | None = None,
        auth_scheme: Any = None,
        auth_credential: Any = None,
        credential_key: str | None = None,
        require_confirmation: bool | Callable[..., Any] = False,
        header_provider: Callable[[ReadonlyContext], Any] | None = None,
        progress_callback: Callable[..., Any] | None = None,
        sampling_callback: Callable[..., Any] | None = None,
        sampling_capabilities: SamplingCapability | None = None,
        elicitation_callback: Callable[..., Any] | None = None,
        effect: Effect | Mapping[str, Effect] | None = None,
        optional: bool = False,
    ) -> None:
        super().__init__(tool_filter=tool_filter, tool_name_prefix=tool_name_prefix, optional=optional)
        if connection_params is None:
            raise ValueError("Missing connection params in McpToolset.")
        if tool_list_cache_ttl_seconds is not None and tool_list_cache_ttl_seconds <= 0:
            raise ValueError(f"tool_list_cache_ttl_seconds must be positive, got {tool_list_cache_ttl_seconds}.")
        if isinstance(connection_params, StdioServerParameters):
            connection_params = StdioConnectionParams(server_params=connection_params)
        self.connection_params = connection_params
        self.auth_scheme, self.auth_credential, self.credential_key = auth_scheme, auth_credential, credential_key
        self.require_confirmation = require_confirmation
        self.header_provider = header_provider
        self._listing_ttl = tool_list_cache_ttl_seconds
        self._progress_callback = progress_callback
        self._effect = effect
        callbacks = {
            "sampling_callback": sampling_callback,
            "sampling_capabilities": sampling_capabilities,
            "elicitation_callback": elicitation_callback,
            "message_handler": self._on_message,
        }
        self._sessions = McpSessions(connection_params, errlog=errlog or sys.stderr, callbacks=callbacks)
        self._listings: TTLCache[object, list[Tool]] = TTLCache(MAX_LISTINGS, tool_list_cache_ttl_seconds or LISTING_S)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the server's tools, sorted by name.

        Raises:
            ConnectionError: The server is unreachable.
        """
        tools: list[BaseTool] = []
        for listed in await self._list_tools(readonly_context):
            tool = McpTool(
                mcp_tool=listed,
                sessions=self._sessions,
                headers_for=functools.partial(self._headers, ask=True),
                require_confirmation=self.require_confirmation,
                progress_callback=self._progress_callback,
                effect=self._effect.get(listed.name) if isinstance(self._effect, Mapping) else self._effect,
            )
            if self._is_tool_selected(tool, readonly_context):
                tools.append(tool)
        # Sort the tools, because servers do not guarantee an order and prompt caching requires a stable one.
        return sorted(tools, key=lambda tool: tool.name)

    async def list_resources(self, readonly_context: ReadonlyContext | None = None) -> list[str]:
        """Return the names of the server's resources."""
        return [resource.name for resource in await self._resources(readonly_context)]

    async def get_resource_info(self, name: str, readonly_context: ReadonlyContext | None = None) -> JsonObject:
        """Return the server's metadata for a resource.

        Raises:
            ValueError: The server has no resource with this name.
        """
        for resource in await self._resources(readonly_context):
            if resource.name == name:
                return plain_result(resource)
        raise ValueError(f"Resource with name '{name}' not found.")

    async def read_resource(self, name: str, readonly_context: ReadonlyContext | None = None) -> list[Any]:
        """Return the contents of a resource as objects from the `mcp` package.

        Raises:
            ValueError: The server has no resource with this name.
        """
        uri = (await self.get_resource_info(name, readonly_context))["uri"]
        result = await self._read(lambda client: client.read_resource(uri), readonly_context)
        return list(result.contents)

    async def close(self) -> None:
        """Close all sessions. If the server is a local program, it exits."""
        self._listings.clear()
        await self._sessions.close()

    def setting_problems(self) -> list[str]:
        """Return one sentence for each invalid setting, without connecting to the server."""
        effects = self._effect.values() if isinstance(self._effect, Mapping) else [self._effect]
        return [
            *super().setting_problems(),
            *parameter_problems(self.connection_params),
            *(
                f"`effect` is {effect!r}; use 'read', 'repeatable' or 'once'."
                for effect in effects
                if effect not in (None, "read", "repeatable", "once")
            ),
            *authentication_problems(self.auth_scheme, self.auth_credential, self.credential_key),
        ]

    async def _list_tools(self, context: ReadonlyContext | None) -> list[Tool]:
        headers = await self._headers(context) or {}
        owner = None if self._listing_ttl else context.invocation_id if context else None
        key = (owner, *sorted(headers.items()))
        listing = self._listings.get(key)
        if listing is not None:
            return listing

        async def request(client: Client) -> list[Tool]:
            tools: list[Tool] = []
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page: ListToolsResult = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if not cursor or len(tools) > MAX_TOOLS:
                    break
            if cursor or len(tools) > MAX_TOOLS:
                log.warning("mcp_tools.cut", offered=min(len(tools), MAX_TOOLS), problem="the server lists too many")
            return tools[:MAX_TOOLS]

        tools = await self._read(request, context)
        if self._listing_ttl or owner:
            self._listings[key] = tools
        return tools

    async def _resources(self, context: ReadonlyContext | None) -> list[Resource]:
        return list((await self._read(lambda client: client.list_resources(), context)).resources)

    async def _read(self, request: Callable[[Client], Awaitable[Result]], context: ReadonlyContext | None) -> Result:
        """Send a read-only request, and apply the connection's timeout."""
        headers = await self._headers(context) or {}
        limit = self.connection_params.timeout
        try:
            # Allow twice the timeout: once for connecting and once for the request.
            return await asyncio.wait_for(self._sessions.call(request, headers, repeatable=True), 2 * limit)
        except TimeoutError:
            problem = f"did not respond within {limit:g} s"
        except MCPError as error:
            if error.message != HTTP_ERROR:
                raise
            problem = "responded with an HTTP error, for example because it is restarting"
        raise McpConnectionError(f"The MCP server {place_of(self.connection_params)} {problem}.")

    async def _headers(self, context: ReadonlyContext | None, *, ask: bool = False) -> Mapping[str, str] | None:
        """Return the headers for this context. As in ADK, the credential's headers override all others.

        If `ask` is true, which requires a tool call's context, and the credential is missing, ask the user for it and
        return None.
        """
        headers: dict[str, str] = {}
        if self.header_provider is not None and context is not None:
            headers.update(await call_header_provider(self.header_provider, context))
        name = type(self).__name__
        credential = await authorize(
            name, self.auth_scheme, self.auth_credential, self.credential_key, context, ask=ask
        )
        if credential is None:
            return None
        if credential.query or credential.cookies:
            raise InvalidTool(name, "its credential is sent in the query or a cookie, but MCP supports only headers.")
        overridden = {header.lower() for header in credential.headers}
        others = {header: value for header, value in headers.items() if header.lower() not in overridden}
        return others | credential.headers

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._listings.clear()


MCPToolset = McpToolset
