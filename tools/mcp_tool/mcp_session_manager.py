"""Open sessions with a server, shared by all calls of this process.

A session is opened and closed in a task of its own: anyio's cancel scopes must be left by the task that entered them,
and calls come from activities, each of which is another task.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any, Protocol, TextIO, TypeVar

import structlog
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CONNECTION_CLOSED

from waystation.core.errors import WaystationError
from waystation.tools.mcp_tool.parameters import (
    ConnectionParams,
    SseConnectionParams,
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
    place_of,
    timeout_of,
)
from waystation.tools.mcp_tool.transport import SENT, Sent, connected

__all__ = [
    "McpConnectionError",
    "McpSessions",
    "OutcomeUnknown",
    "SseConnectionParams",
    "StdioConnectionParams",
    "StdioServerParameters",
    "StreamableHTTPConnectionParams",
]

log = structlog.get_logger(__name__)

IDLE_S = 900.0
"""How long an unused session is kept. Source: ADK 2.13."""
MAX_SESSIONS = 64
"""How many sessions one toolset keeps; each set of headers has its own."""
CLOSE_TIMEOUT_S = 8.0
"""`mcp` gives a program six seconds to end before it abandons it."""

Result = TypeVar("Result")


class McpConnectionError(WaystationError, ConnectionError):
    """A server cannot be reached, or the connection to it broke."""


class OutcomeUnknown(McpConnectionError):
    """The connection broke after the request was sent, so the server may have carried it out."""


class Opener(Protocol):
    """What a session needs besides parameters and headers: callbacks of the client, and where a program's errors go."""

    errlog: TextIO
    callbacks: Mapping[str, Any]


class McpSession:
    """One open session."""

    def __init__(self, parameters: ConnectionParams, headers: Mapping[str, str], opener: Opener) -> None:
        self._parameters, self._headers, self._opener = parameters, headers, opener
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Client] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._broken = False
        self.calls = 0
        self.used = time.monotonic()
        # With a context of its own, or it would keep that of the activity which happened to open it.
        self._task = self._loop.create_task(self._live(), context=Context())

    @property
    def usable(self) -> bool:
        """Whether calls may be made: not closed or broken, and of this event loop."""
        return not (self._broken or self._task.done() or self._closing.is_set()) and self._here

    @property
    def closed(self) -> bool:
        """Whether nothing is left of it."""
        return self._task.done()

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
            return await asyncio.wait_for(asyncio.shield(self._opened), timeout_of(self._parameters))
        except TimeoutError:
            reason = f"it did not answer within {timeout_of(self._parameters):g} s"
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
            self._task.cancel()

    async def close(self) -> None:
        """Close, and wait for it, but not for ever."""
        self.abandon()
        if not self._here:  # the loop that it lived in has ended, and its connection with it
            return
        done, _ = await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT_S)
        if not done:
            self._task.cancel()
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
            if not self._opened.done():
                self._opened.set_exception(error)
                self._opened.exception()  # looked at here, or asyncio complains when nobody waits any more
            elif not self._closing.is_set():
                log.warning("mcp_session.broke", reason=_reason(error))
        finally:
            self._broken = True
            if not self._opened.done():
                self._opened.set_exception(McpConnectionError("closed while it was opened"))
                self._opened.exception()


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
        self._retired = {old for old in self._retired if not old.closed} | {session}

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
