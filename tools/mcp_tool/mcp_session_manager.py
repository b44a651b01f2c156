"""Connection parameters for MCP servers, and sessions that all calls in this process share.

Each session is opened and closed in a dedicated task. The task that enters an anyio cancel scope must also leave it,
and calls come from activities, which run in different tasks. Connections record whether a request may have reached the
server. A request that was never sent can be repeated, but a tool call that was sent may have taken effect.

Parameters have the same names and defaults as in ADK.
"""

import asyncio
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx2
import structlog
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from mcp.types.methods import validate_server_result
from mcp.types.version import LATEST_MODERN_VERSION
from pydantic import BaseModel, Field, ValidationError

from waystation.core.errors import NotJson, WaystationError
from waystation.core.naming import with_article
from waystation.core.payload import decode_leniently, encode, repair_json, with_notes
from waystation.tools.outcome import MAX_RESULT_BYTES, OutcomeUnknown, TooLarge, has_more_values

log = structlog.get_logger(__name__)

IDLE_S = 900.0
"""Sessions are closed after being unused for this long, as in ADK 2.13."""
MAX_SESSIONS = 64
"""Maximum number of open sessions per toolset. Each distinct set of headers has its own session."""
CLOSE_TIMEOUT_S = 8.0
"""Time limit for closing a session. Longer than the six seconds that `mcp` gives a server program to exit."""

MAX_TOOLS = 1_000
"""Maximum number of tools in a listing. The rest is left out, because every tool becomes part of each prompt."""
MAX_VALUES = 30_000
"""Maximum number of values in a server's response, without structured content and schemas. Text is three values. `mcp`
validates all of them in one step, which takes up to 30 µs for each, during which no other thread runs."""
OPAQUE = ("_meta", "structuredContent", "inputSchema", "outputSchema")
"""Fields in which the protocol allows any JSON."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DATA = re.compile(rb"^data:(.*\\u[dD][89a-fA-F].*)", re.MULTILINE)
_TOO_LARGE = f"an MCP response with more than {MAX_VALUES:,} values or {MAX_RESULT_BYTES:,} bytes"

Result = TypeVar("Result")
DEFAULT_TIMEOUT_S = 5.0


class StdioConnectionParams(BaseModel):
    """Connection to a server program that runs on the worker's machine and stops when the worker does."""

    server_params: StdioServerParameters
    timeout: float = DEFAULT_TIMEOUT_S
    """Time limit in seconds for starting the program and negotiating the protocol."""


class SseConnectionParams(BaseModel):
    """Connection to a server over SSE, the transport that streamable HTTP has replaced."""

    url: str
    # Hide headers in repr, because they often contain credentials.
    headers: dict[str, Any] | None = Field(default=None, repr=False)
    timeout: float = DEFAULT_TIMEOUT_S
    """Time limit in seconds for connecting."""
    sse_read_timeout: float = 300.0
    """Maximum time in seconds to wait for data from the server."""
    httpx_client_factory: Callable[..., httpx2.AsyncClient] = create_mcp_http_client


class StreamableHTTPConnectionParams(SseConnectionParams):
    """Connection to a server over streamable HTTP."""

    terminate_on_close: bool = True
    """Whether to tell the server to end the session when the connection closes."""


ConnectionParams: TypeAlias = StdioConnectionParams | SseConnectionParams | StreamableHTTPConnectionParams


def place_of(parameters: ConnectionParams) -> str:
    """Return a server's program or host, for use in messages. URL paths and arguments may contain credentials."""
    if isinstance(parameters, StdioConnectionParams):
        return repr(parameters.server_params.command)
    return f"at {urlsplit(parameters.url).netloc.rpartition('@')[2]}"


def parameter_problems(parameters: object) -> Iterator[str]:
    """Yield one sentence for each problem with the connection parameters, without connecting."""
    if isinstance(parameters, StdioConnectionParams):
        yield from _timeout_problems(timeout=parameters.timeout)
        if not _program_exists(parameters.server_params):
            yield (
                f"the server program {parameters.server_params.command!r} does not exist; install it on the worker's "
                "machine, or pass its path as `command`."
            )
    elif isinstance(parameters, SseConnectionParams):
        yield from _timeout_problems(timeout=parameters.timeout, sse_read_timeout=parameters.sse_read_timeout)
        if not _is_url(parameters.url):
            yield f"`url` is {parameters.url!r}; use a URL such as 'http://127.0.0.1:8000/mcp'."
    else:
        yield (
            f"`connection_params` is {with_article(parameters)}; "
            "use StreamableHTTPConnectionParams, SseConnectionParams or "
            "StdioConnectionParams."
        )


def _program_exists(parameters: StdioServerParameters) -> bool:
    """Return whether the operating system can find the program."""
    command = parameters.command
    if os.sep in command:
        command = str(Path(parameters.cwd or ".") / command)
    return shutil.which(command, path=(parameters.env or {}).get("PATH")) is not None


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _timeout_problems(**timeouts: float) -> Iterator[str]:
    for name, seconds in timeouts.items():
        if not seconds > 0:
            yield f"`{name}` is {seconds:g}; use a number of seconds above 0."


@dataclass
class SentRequest:
    """Tracks whether one request may have been sent or was certainly sent."""

    maybe: bool = False
    surely: bool = False
    refused: bool = False
    """Whether the server refused the request because the session no longer exists."""


SENT: ContextVar[SentRequest | None] = ContextVar("mcp_request_sent", default=None)
"""Delivery status of the current request. `mcp` transports pass the sender's context on to the code that sends it."""

_NOT_CONNECTED = (
    "connection.connect_tcp.failed",
    "connection.connect_unix_socket.failed",
    "connection.start_tls.failed",
)


@asynccontextmanager
async def connected(
    parameters: ConnectionParams, headers: Mapping[str, str], errlog: TextIO, warned: set[str]
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Connect to a server and yield the read and write streams for `mcp.Client`.

    Tools in `warned` are left out without a warning; others are added to it.
    """
    if isinstance(parameters, StdioConnectionParams):
        async with stdio_client(parameters.server_params, errlog) as (read, write):
            yield _FilteringStream(read, warned), _RecordingStream(write)
        return
    merged = {**(parameters.headers or {}), **headers}
    if isinstance(parameters, StreamableHTTPConnectionParams):
        timeout = httpx2.Timeout(parameters.timeout, read=parameters.sse_read_timeout)
        async with (
            _record_delivery(parameters.httpx_client_factory(headers=merged, timeout=timeout, auth=None)) as client,
            streamable_http_client(
                parameters.url,
                http_client=client,
                terminate_on_close=parameters.terminate_on_close,
                max_sse_event_size=MAX_RESULT_BYTES,
            ) as (read, write),
        ):
            yield _FilteringStream(read, warned), write
        return
    async with sse_client(
        parameters.url,
        headers=merged,
        timeout=parameters.timeout,
        sse_read_timeout=parameters.sse_read_timeout,
        httpx_client_factory=parameters.httpx_client_factory,
    ) as (read, write):
        # The SSE transport posts from a separate task, which does not have the sender's context.
        yield _FilteringStream(read, warned), _RecordingStream(write)


def _record_delivery(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Add hooks to a client that record for each request whether it may have been sent."""

    async def record_request(request: httpx2.Request) -> None:
        sent = SENT.get()
        if sent is None:
            return
        # Assume so by default, because a transport that does not emit trace events may have sent the request.
        sent.maybe = True

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if event.endswith("send_request_headers.started"):
                sent.surely = True
            elif event in _NOT_CONNECTED:
                # A call can consist of several HTTP requests, and an earlier one may have been sent.
                sent.maybe = sent.surely

        request.extensions = {**request.extensions, "trace": trace}

    async def record_response(response: httpx2.Response) -> None:
        sent = SENT.get()
        # According to the protocol, this means that the session has ended and the request was not processed.
        if sent is not None and response.status_code == 404 and "mcp-session-id" in response.request.headers:
            sent.refused = True
        is_json = response.headers.get("content-type", "").startswith("application/json")
        # Responses have no setting for this. `mcp` reads them through this method, which decompresses them.
        response.aiter_bytes = lambda size=None, read=response.aiter_bytes: _repair(read(size), is_json)  # type: ignore[method-assign, misc]

    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks.get("request", []), record_request],
        "response": [*hooks.get("response", []), record_response],
    }
    return client


async def _repair(content: AsyncGenerator[bytes, None], is_json: bool) -> AsyncGenerator[bytes, None]:
    """Yield the content of a response with repaired messages: one in JSON, or one in each event of a stream.

    If JSON exceeds `MAX_RESULT_BYTES`, `mcp` reports the error to the caller. It limits events itself.
    """
    held = bytearray()
    async with aclosing(content) as chunks:
        async for chunk in chunks:
            held += chunk
            is_large = len(held) > MAX_RESULT_BYTES
            if is_json and is_large:
                raise httpx2.StreamError(_TOO_LARGE)
            if not is_json and (b"\n" in chunk or is_large):
                lines = held[: held.rfind(b"\n") + 1] or held
                yield _DATA.sub(lambda match: b"data: " + _repair_message(match[1]), lines)
                held = held[len(lines) :]
    yield _repair_message(held) if is_json else bytes(held)


def _repair_message(data: bytes | bytearray) -> bytes:
    """Return a JSON message whose lone surrogates are replaced and listed in its result. `mcp` cannot parse them."""
    if _SURROGATE.search(data):
        with suppress(AttributeError, NotJson, TypeError, ValueError):  # not a message
            message, notes = repair_json(decode_leniently(bytes(data)))
            result = message.get("result")
            if notes and isinstance(result, dict):
                result["_meta"] = with_notes(result.get("_meta") or {}, notes)
            return encode(message)
    return bytes(data)


class _Stream:
    """Wraps a stream of a connection."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _FilteringStream(_Stream):
    """Wraps a connection's read stream to check responses before `mcp` validates them.

    Lone surrogates are replaced, and invalid tools are left out of listings, because `mcp` would reject the whole
    response. Responses with too many values become errors, because `mcp` would validate them for minutes.
    """

    _version = LATEST_MODERN_VERSION
    """The protocol version, unless the server chooses an earlier one when the session is initialized."""

    def __init__(self, stream: Any, warned: set[str]) -> None:
        super().__init__(stream)
        self._warned = warned

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await self._stream.__anext__()
        if isinstance(item, ValidationError):  # stdio and SSE pass on a message that `mcp` cannot parse
            with suppress(ValueError):
                message = _repair_message(str(item.errors()[0]["input"]).encode())
                item = SessionMessage(jsonrpc_message_adapter.validate_json(message, by_name=False))
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict):
            self._version = result.get("protocolVersion", self._version)
            if isinstance(result.get("tools"), list):
                result["tools"] = [
                    tool for tool in result["tools"][: MAX_TOOLS + 1] if self._is_valid({**result, "tools": [tool]})
                ]
            if has_more_values(result, MAX_VALUES, except_in=("tools", *OPAQUE)):
                item.message = JSONRPCError(
                    jsonrpc="2.0", id=item.message.id, error=ErrorData(code=PARSE_ERROR, message=_TOO_LARGE)
                )
        return item

    def _is_valid(self, listing: dict[str, Any]) -> bool:
        try:
            validate_server_result("tools/list", self._version, listing)
        except ValueError:  # also if the server has stated an unknown version
            tool = listing["tools"][0]
            name = tool.get("name") if isinstance(tool, dict) else None
            if repr(name) not in self._warned and len(self._warned) < MAX_TOOLS:
                self._warned.add(repr(name))
                log.warning("mcp_tool.left_out", tool=name, problem=f"it is not valid in MCP {self._version}")
            return False
        return True


class _RecordingStream(_Stream):
    """Wraps a connection's write stream to record that a request may have been sent."""

    async def send(self, item: Any) -> None:
        sent = SENT.get()
        if sent is not None:
            sent.maybe = True
        await self._stream.send(item)


SseServerParams = SseConnectionParams
StreamableHTTPServerParams = StreamableHTTPConnectionParams


class McpConnectionError(WaystationError, ConnectionError):
    """The server is unreachable, or the connection was lost.

    Check that the MCP server runs and can be reached from the worker.
    """


class McpSession:
    """One open session."""

    def __init__(self, parameters: ConnectionParams, headers: Mapping[str, str], opener: "McpSessions") -> None:
        self._parameters, self._headers, self._opener = parameters, headers, opener
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Client] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._broken = False
        self.calls = 0
        self.used = time.monotonic()
        # Run the task in an empty context, so that it does not keep the context of the activity that opened it.
        self.task = self._loop.create_task(self._run(), context=Context())

    @property
    def usable(self) -> bool:
        """Whether the session can be used: it is neither closed nor broken, and belongs to the running event loop."""
        return not (self._broken or self.task.done() or self._closing.is_set()) and self._here

    @property
    def _here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def client(self) -> Client:
        """Wait until the session is open and return its client.

        Raises:
            McpConnectionError: The session cannot be opened.
        """
        try:
            # Shield the future, because other calls may be waiting for the same session.
            return await asyncio.wait_for(asyncio.shield(self._opened), self._parameters.timeout)
        except TimeoutError:
            reason = f"no response within {self._parameters.timeout:g} s"
        except Exception as error:  # noqa: BLE001  # transports can raise anything
            reason = _reason(error)
        self.abandon()
        raise McpConnectionError(f"The MCP server {place_of(self._parameters)} cannot be used: {reason}.")

    async def call(self, request: Callable[[Client], Awaitable[Result]]) -> Result:
        """Send a request and return its result.

        Raises:
            McpConnectionError: The connection is broken, but the request was not processed.
            OutcomeUnknown: The connection is broken, and the request may have been processed.
            TooLarge: The server processed the request, but its response is too large.
            MCPError: The server rejected the request.
        """
        client = await self.client()
        sent = SentRequest()
        token = SENT.set(sent)
        self.calls += 1
        try:
            return await request(client)
        except MCPError as error:
            if sent.refused:
                self.abandon()
                raise McpConnectionError("The MCP server has ended the session.") from error
            # The second text is that of `mcp`, for an event of a stream.
            if error.message.endswith((_TOO_LARGE, f"exceeded the {MAX_RESULT_BYTES} byte limit.")):
                raise TooLarge(_TOO_LARGE, "ask for less, for example for one page") from error
            # Compare the message too, because servers use the same code for other errors.
            if error.code != CONNECTION_CLOSED or error.message != "Connection closed":
                raise
            self.abandon()
            if sent.maybe:
                raise OutcomeUnknown("The connection to the MCP server broke.") from error
            raise McpConnectionError("The MCP server cannot be reached.") from error
        finally:
            self.calls -= 1
            self.used = time.monotonic()
            SENT.reset(token)

    def abandon(self) -> None:
        """Stop using this session and let it close in the background."""
        self._broken = True
        if not self._here:
            return
        self._closing.set()
        if not self._opened.done():  # it would otherwise wait for the server's response
            self.task.cancel()

    async def close(self) -> None:
        """Close the session, waiting for at most CLOSE_TIMEOUT_S seconds."""
        self.abandon()
        if not self._here:  # its event loop has ended, and so has the connection
            return
        done, _ = await asyncio.wait((self.task,), timeout=CLOSE_TIMEOUT_S)
        if not done:
            self.task.cancel()
            log.warning("mcp_session.close_timed_out", timeout_s=CLOSE_TIMEOUT_S)

    async def _run(self) -> None:
        """Open the session and keep it open until it is closed or the connection breaks."""
        try:
            transport = connected(self._parameters, self._headers, self._opener.errlog, self._opener.warned)
            async with Client(transport, cache=None, **self._opener.callbacks) as client:
                if not self._opened.done():
                    self._opened.set_result(client)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001  # transports can raise anything; the callers receive it
            if self._opened.done() and not self._closing.is_set():
                log.warning("mcp_session.broke", reason=_reason(error))
            self._fail(error)
        finally:
            self._broken = True
            self._fail(McpConnectionError("the session was closed before it was open"))

    def _fail(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # mark it as retrieved, or asyncio warns if no call is waiting for it


class McpSessions:
    """The sessions of one toolset, one for each set of headers.

    Locks are not needed, because only one event loop uses the sessions at a time.
    """

    def __init__(self, parameters: ConnectionParams, *, errlog: TextIO, callbacks: Mapping[str, Any]) -> None:
        self.parameters, self.errlog, self.callbacks = parameters, errlog, callbacks
        self._sessions: OrderedDict[tuple[tuple[str, str], ...], McpSession] = OrderedDict()
        self._retired: set[McpSession] = set()
        self.warned: set[str] = set()
        """The invalid tools that were logged."""

    async def call(
        self, request: Callable[[Client], Awaitable[Result]], headers: Mapping[str, str], *, repeatable: bool
    ) -> Result:
        """Send a request in the session for these headers. If the session is broken, retry in a new session.

        A request that may have reached the server is sent again only if `repeatable` is true.

        Raises:
            McpConnectionError: The request was not processed.
            OutcomeUnknown: The request may have been processed.
            MCPError: The server rejected the request.
        """
        try:
            return await self._session(headers).call(request)
        except OutcomeUnknown:
            if not repeatable:
                raise
        except McpConnectionError:
            pass
        return await self._session(headers).call(request)

    def _session(self, headers: Mapping[str, str]) -> McpSession:
        key = tuple(sorted((name.lower(), value) for name, value in headers.items()))
        session = self._sessions.pop(key, None)
        if session is not None and not session.usable:
            self._retire(session)
            session = None
        if session is None:
            session = McpSession(self.parameters, headers, self)
        self._sessions[key] = session
        self._drop_unused()
        return session

    def _drop_unused(self) -> None:
        """Close sessions that have been idle for IDLE_S seconds, and older ones if there are more than MAX_SESSIONS.

        A session is never used again after a token in its headers has changed.
        """
        oldest = time.monotonic() - IDLE_S
        for key, session in list(self._sessions.items())[:-1]:
            too_many = len(self._sessions) > MAX_SESSIONS
            if not session.usable or (not session.calls and (too_many or session.used < oldest)):
                del self._sessions[key]
                self._retire(session)

    def _retire(self, session: McpSession) -> None:
        """Abandon a session, but keep a reference until it is closed: event loops reference tasks only weakly."""
        session.abandon()
        self._retired = {old for old in self._retired if not old.task.done()} | {session}

    async def close(self) -> None:
        """Close all sessions. Later calls open new sessions."""
        sessions = [*self._sessions.values(), *self._retired]
        self._sessions.clear()
        self._retired.clear()
        await asyncio.gather(*(session.close() for session in sessions))


def _reason(error: BaseException) -> str:
    """Return only an error's type and code. Models and logs receive the result, and messages may contain secrets."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return type(error).__name__ if not isinstance(error, MCPError) else f"{type(error).__name__} {error.code}"
