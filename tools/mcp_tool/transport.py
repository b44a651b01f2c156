"""Connections to servers that tell, for each request, whether it may have reached the server.

What was never sent may be sent again; a tool call that was sent may have taken effect.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TextIO

import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from waystation.tools.mcp_tool.parameters import ConnectionParams, SseConnectionParams, StdioConnectionParams
from waystation.tools.mcp_tool.parameters import StreamableHTTPConnectionParams as HTTPParams


class Sent:
    """Whether one request may have reached the server."""

    def __init__(self) -> None:
        self.maybe = False
        self.surely = False
        self.refused = False
        """Whether the server has refused it, because it has forgotten the session."""


SENT: ContextVar[Sent | None] = ContextVar("mcp_request_sent", default=None)
"""The request that the current code sends. The transports of `mcp` hand the sender's context to the code that posts."""

_NOT_CONNECTED = (
    "connection.connect_tcp.failed",
    "connection.connect_unix_socket.failed",
    "connection.start_tls.failed",
)


@asynccontextmanager
async def connected(
    parameters: ConnectionParams, headers: Mapping[str, str], errlog: TextIO
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Yield the streams of a connection, in the form that `mcp.Client` takes."""
    if isinstance(parameters, StdioServerParameters | StdioConnectionParams):
        program = parameters if isinstance(parameters, StdioServerParameters) else parameters.server_params
        async with stdio_client(program, errlog) as (read, write):
            yield read, _Noting(write)
        return
    given = {**(parameters.headers or {}), **headers}
    if isinstance(parameters, HTTPParams):
        timeout = httpx2.Timeout(parameters.timeout, read=parameters.sse_read_timeout)
        async with (
            _noting(parameters.httpx_client_factory(headers=given, timeout=timeout, auth=None)) as client,
            streamable_http_client(
                parameters.url, http_client=client, terminate_on_close=parameters.terminate_on_close
            ) as streams,
        ):
            yield streams
        return
    async with _sse(parameters, given) as streams:
        yield streams


@asynccontextmanager
async def _sse(parameters: SseConnectionParams, headers: dict[str, Any]) -> AsyncGenerator[tuple[Any, Any], None]:
    async with sse_client(
        parameters.url,
        headers=headers,
        timeout=parameters.timeout,
        sse_read_timeout=parameters.sse_read_timeout,
        httpx_client_factory=parameters.httpx_client_factory,
    ) as (read, write):
        # It posts from a task of its own, without the sender's context.
        yield read, _Noting(write)


def _noting(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Have a client note for each request whether it may have been sent."""

    async def note(request: httpx2.Request) -> None:
        sent = SENT.get()
        if sent is None:
            return
        # Unless told otherwise: a transport that reports nothing may have sent it.
        sent.maybe = True

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if event.endswith("send_request_headers.started"):
                sent.surely = True
            elif event in _NOT_CONNECTED:
                # A call may take several requests, of which an earlier one was sent.
                sent.maybe = sent.surely

        request.extensions = {**request.extensions, "trace": trace}

    async def judge(response: httpx2.Response) -> None:
        sent = SENT.get()
        # The protocol's sign that a session has ended; nothing that is sent in such a session is carried out.
        if sent is not None and response.status_code == 404 and "mcp-session-id" in response.request.headers:
            sent.refused = True

    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks.get("request", []), note],
        "response": [*hooks.get("response", []), judge],
    }
    return client


class _Noting:
    """The write end of a connection, which notes what is written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, item: Any) -> None:
        sent = SENT.get()
        if sent is not None:
            sent.maybe = True
        await self._stream.send(item)

    async def __aenter__(self) -> "_Noting":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
