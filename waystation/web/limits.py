"""Limits that protect a web server from too many requests and too much data, and what enforces those of requests."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from waystation.web.http_responses import RequestRefused


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on what a web server accepts, remembers in memory, and shows."""

    body_bytes: int = 3_500_000
    """Maximum size of a form in bytes. The default is enough for the largest answer with every byte escaped."""
    trigger_bytes: int = 1_000_000
    """Maximum size of a delivery to a trigger, in bytes."""
    body_s: float = 30.0
    """How long the body of a request may take, in seconds."""
    headers_s: float = 10.0
    """How long the headers of a request may take, in seconds."""
    connections: int = 600
    """Maximum number of connections. See `waystation.web.connection_limits` for what happens to more."""
    connections_per_address: int = 100
    """Maximum number of connections per address. Behind a proxy, the proxy has to limit them."""
    calls_per_page: int = 50
    """Number of calls on a page of the inbox. A page may have a few more, to keep an invocation's calls together."""
    calls_per_answer: int = 50
    """Maximum number of calls that can be answered with one click."""
    streams: int = 200
    """Maximum number of open event streams. Each stream keeps the log of its invocation in memory."""
    streams_per_login: int = 20
    """Maximum number of open event streams per person, or per login if the person is not verified."""
    program_streams: int = 100
    """Maximum number of open event streams of all programs that use the access token."""
    visibility_per_s: int = 10
    """Maximum number of requests to Temporal's visibility per second, for all pages together."""
    logins: int = 100
    """Maximum number of logged-in browsers. Another login logs out the browser that has been idle longest."""
    visits: int = 1_000
    """Maximum number of logins from links to calls. Links have a separate limit so that they do not log anyone out."""
    window_s: float = 60.0
    """Length of the time window for the limits on attempts and forms, in seconds."""
    login_attempts: int = 30
    """Maximum number of login attempts per address and window."""
    posts: int = 120
    """Maximum number of forms per login and window."""
    posts_of_address: int = 600
    """Maximum number of forms per address and window."""
    counted: int = 10_000
    """Maximum number of addresses or logins that each rate limit counts. The least recently used are dropped first."""


class RequestRate:
    """A rate limit that keeps a token bucket for each client."""

    def __init__(self, times: int, *, per_s: float, clients: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._per_s, self._clock = float(times), per_s, clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(clients)

    def check(self, client: str) -> None:
        """Count one attempt.

        Raises:
            Refused: The client has made too many attempts.
        """
        now = self._clock()
        tokens, since = self._buckets.get(client, (self._times, now))
        tokens = min(self._times, tokens + (now - since) * self._times / self._per_s)
        self._buckets[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if tokens < 1:
            seconds = math.ceil((1 - tokens) * self._per_s / self._times)
            text = f"Too many requests. Try again in {seconds} s."
            raise RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, "TooOften", text, {"Retry-After": str(seconds)})


class RequestBody:
    """The body of a request, which is subject to a size limit and a deadline."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        headers = Headers(scope=scope)
        self._receive, self._limit, self._size = receive, limits.body_bytes, 0
        self._deadline = asyncio.get_running_loop().time() + limits.body_s
        self.has_more = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        """Whether part of the body has not been received yet."""

    async def receive(self) -> Message:
        """Return the next part of the body to the application.

        Raises:
            Refused: The body is too large, or it did not arrive in time.
        """
        try:
            message = await self._read()
        except TimeoutError:
            text = "The rest of the request did not arrive in time. Send it again."
            raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, "TooSlow", text) from None
        if self._size > self._limit:
            raise too_large(self._limit)
        return message

    async def drain(self) -> None:
        """Read and discard the rest of the body, but stop at the deadline or after another `body_bytes`."""
        limit = self._size + self._limit
        with contextlib.suppress(TimeoutError):
            while self.has_more and self._size < limit:
                await self._read()

    async def _read(self) -> Message:
        # After the body, the application waits here until the client disconnects, for as long as that takes.
        async with asyncio.timeout_at(self._deadline if self.has_more else None):
            message = await self._receive()
        self.has_more = message.get("more_body", False)
        self._size += len(message.get("body", b""))
        return message


def too_large(limit: int) -> RequestRefused:
    """Return the refusal of a request with a larger body than `limit` bytes."""
    return RequestRefused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", f"The request is too large: the limit is {limit:,} bytes."
    )
