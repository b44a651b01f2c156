"""How a server is reached, and open sessions with it, shared by all calls of this process.

A session is opened and closed in a task of its own: anyio's cancel scopes must be left by the task that entered them,
and calls come from activities, each of which is another task. Connections tell, for each request, whether it may have
reached the server: what was never sent may be sent again; a tool call that was sent may have taken effect.

Source: adk-semantics 10; names and defaults of parameters are ADK's.
"""

import asyncio
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx2
import structlog
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CONNECTION_CLOSED
from pydantic import BaseModel, Field

from waystation.core import WaystationError, a

log = structlog.get_logger(__name__)

IDLE_S = 900.0
"""How long an unused session is kept. Source: ADK 2.13."""
MAX_SESSIONS = 64
"""How many sessions one toolset keeps; each set of headers has its own."""
CLOSE_TIMEOUT_S = 8.0
"""`mcp` gives a program six seconds to end before it abandons it."""

Result = TypeVar("Result")
DEFAULT_TIMEOUT_S = 5.0


class StdioConnectionParams(BaseModel):
    """A server that is a program: it is started on the worker's machine, and ended with the worker."""

    server_params: StdioServerParameters
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds that starting the program and agreeing on a protocol may take."""


class SseConnectionParams(BaseModel):
    """A server behind the transport that streamable HTTP replaced."""

    url: str
    # Not shown: they often carry credentials.
    headers: dict[str, Any] | None = Field(default=None, repr=False)
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds that connecting may take."""
    sse_read_timeout: float = 300.0
    """Seconds that the server may be silent."""
    httpx_client_factory: Callable[..., httpx2.AsyncClient] = create_mcp_http_client


class StreamableHTTPConnectionParams(SseConnectionParams):
    """A server behind a URL."""

    terminate_on_close: bool = True
    """Whether the server is told when the session ends."""


ConnectionParams: TypeAlias = StdioConnectionParams | SseConnectionParams | StreamableHTTPConnectionParams


def place_of(parameters: ConnectionParams) -> str:
    """Return how a server is told from others: its program, or its host. Paths and arguments may hold credentials."""
    if isinstance(parameters, StdioConnectionParams):
        return repr(parameters.server_params.command)
    return f"at {urlsplit(parameters.url).netloc.rpartition('@')[2]}"


def parameter_problems(parameters: object) -> Iterator[str]:
    """Yield why a server cannot be reached, one sentence each, as far as can be said without trying."""
    if isinstance(parameters, StdioConnectionParams):
        yield from _timeout_problems(timeout=parameters.timeout)
        if not _found(parameters.server_params):
            yield (
                f"there is no program {parameters.server_params.command!r} that could be its server; "
                "install it on the worker's machine, or give its path as `command`."
            )
    elif isinstance(parameters, SseConnectionParams):
        yield from _timeout_problems(timeout=parameters.timeout, sse_read_timeout=parameters.sse_read_timeout)
        if not _is_url(parameters.url):
            yield f"`url` is {parameters.url!r}; use one such as 'http://127.0.0.1:8000/mcp'."
    else:
        yield (
            f"`connection_params` is {a(parameters)}; use StreamableHTTPConnectionParams, SseConnectionParams or "
            "StdioConnectionParams."
        )


def _found(parameters: StdioServerParameters) -> bool:
    """Whether the program is there, where the operating system will look for it."""
    command = parameters.command
    if os.sep in command:
        command = str(Path(parameters.cwd or ".") / command)
    return shutil.which(command, path=(parameters.env or {}).get("PATH")) is not None


def _is_url(url: str) -> bool:
    try:
        found = urlsplit(url)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and bool(found.hostname)


def _timeout_problems(**given: float) -> Iterator[str]:
    for name, seconds in given.items():
        if not seconds > 0:
            yield f"`{name}` is {seconds:g}; use a number of seconds above 0."


@dataclass
class Sent:
    """Whether one request may have reached the server."""

    maybe: bool = False
    surely: bool = False
    refused: bool = False
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
    if isinstance(parameters, StdioConnectionParams):
        async with stdio_client(parameters.server_params, errlog) as (read, write):
            yield read, _Noting(write)
        return
    given = {**(parameters.headers or {}), **headers}
    if isinstance(parameters, StreamableHTTPConnectionParams):
        timeout = httpx2.Timeout(parameters.timeout, read=parameters.sse_read_timeout)
        async with (
            _noting(parameters.httpx_client_factory(headers=given, timeout=timeout, auth=None)) as client,
            streamable_http_client(
                parameters.url, http_client=client, terminate_on_close=parameters.terminate_on_close
            ) as streams,
        ):
            yield streams
        return
    async with sse_client(
        parameters.url,
        headers=given,
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


class McpConnectionError(WaystationError, ConnectionError):
    """A server cannot be reached, or the connection to it broke."""


class OutcomeUnknown(McpConnectionError):
    """The connection broke after the request was sent, so the server may have carried it out."""


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
        # With a context of its own, or it would keep that of the activity which happened to open it.
        self.task = self._loop.create_task(self._live(), context=Context())

    @property
    def usable(self) -> bool:
        """Whether calls may be made: not closed or broken, and of this event loop."""
        return not (self._broken or self.task.done() or self._closing.is_set()) and self._here

    @property
    def _here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def client(self) -> Client:
        """Return the client, once the session is open.

        Raises:
            McpConnectionError: It cannot be opened.
        """
        try:
            # Shielded: others may wait for the same session.
            return await asyncio.wait_for(asyncio.shield(self._opened), self._parameters.timeout)
        except TimeoutError:
            reason = f"it did not answer within {self._parameters.timeout:g} s"
        except Exception as error:  # noqa: BLE001  # transports raise anything
            reason = _reason(error)
        self.abandon()
        raise McpConnectionError(f"The MCP server {place_of(self._parameters)} cannot be used: {reason}.")

    async def call(self, request: Callable[[Client], Awaitable[Result]]) -> Result:
        """Make one request.

        Raises:
            McpConnectionError: The connection is broken, and the request was not carried out.
            OutcomeUnknown: The connection broke, and the request may have been carried out.
            MCPError: The server refused the request.
        """
        client = await self.client()
        sent = Sent()
        token = SENT.set(sent)
        self.calls += 1
        try:
            return await request(client)
        except MCPError as error:
            if sent.refused:
                self.abandon()
                raise McpConnectionError("The MCP server has ended the session.") from error
            # Servers use the code too, for errors of their own.
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
        """Use this session no more; it closes by itself."""
        self._broken = True
        if not self._here:
            return
        self._closing.set()
        if not self._opened.done():  # it would notice only once the server has answered
            self.task.cancel()

    async def close(self) -> None:
        """Close, and wait for it, but not for ever."""
        self.abandon()
        if not self._here:  # the loop that it lived in has ended, and its connection with it
            return
        done, _ = await asyncio.wait((self.task,), timeout=CLOSE_TIMEOUT_S)
        if not done:
            self.task.cancel()
            log.warning("mcp_session.close_timed_out", timeout_s=CLOSE_TIMEOUT_S)

    async def _live(self) -> None:
        """Hold the session open until it is closed; what breaks it ends this too."""
        try:
            transport = connected(self._parameters, self._headers, self._opener.errlog)
            async with Client(transport, cache=None, **self._opener.callbacks) as client:
                if not self._opened.done():
                    self._opened.set_result(client)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001  # transports raise anything; whoever calls is told
            if self._opened.done() and not self._closing.is_set():
                log.warning("mcp_session.broke", reason=_reason(error))
            self._fail(error)
        finally:
            self._broken = True
            self._fail(McpConnectionError("closed while it was opened"))

    def _fail(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # looked at here, or asyncio complains when nobody waits any more


class McpSessions:
    """The sessions of one toolset, one for each set of headers.

    Used by one event loop at a time, hence without locks.
    """

    def __init__(self, parameters: ConnectionParams, *, errlog: TextIO, callbacks: Mapping[str, Any]) -> None:
        self.parameters, self.errlog, self.callbacks = parameters, errlog, callbacks
        self._sessions: OrderedDict[tuple[tuple[str, str], ...], McpSession] = OrderedDict()
        self._retired: set[McpSession] = set()

    async def call(
        self, request: Callable[[Client], Awaitable[Result]], headers: Mapping[str, str], *, repeatable: bool
    ) -> Result:
        """Make a request in the session for these headers; in a new one if that is broken.

        A request that may have reached the server is made again only if it is `repeatable`.

        Raises:
            McpConnectionError: The request was not carried out, or, as OutcomeUnknown, may have been.
            MCPError: The server refused it.
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
        """Let go of sessions that nobody has used for long: headers with tokens change, and nobody comes back."""
        oldest = time.monotonic() - IDLE_S
        for key, session in list(self._sessions.items())[:-1]:
            too_many = len(self._sessions) > MAX_SESSIONS
            if not session.usable or (not session.calls and (too_many or session.used < oldest)):
                del self._sessions[key]
                self._retire(session)

    def _retire(self, session: McpSession) -> None:
        """Let a session close by itself; held here meanwhile, since event loops hold tasks only weakly."""
        session.abandon()
        self._retired = {old for old in self._retired if not old.task.done()} | {session}

    async def close(self) -> None:
        """Close all sessions. Later calls open new ones."""
        sessions = [*self._sessions.values(), *self._retired]
        self._sessions.clear()
        self._retired.clear()
        await asyncio.gather(*(session.close() for session in sessions))


def _reason(error: BaseException) -> str:
    """Return what went wrong, without addresses or headers: it is told to models and logged."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return type(error).__name__ if not isinstance(error, MCPError) else f"{type(error).__name__} {error.code}"
