"""The guard before the application: refuses hostile requests, and binds browsers with headers.

Everything but the login and the static files needs a login. Nothing here protects the traffic itself: on a network, a
proxy has to add TLS.
"""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.core import WaystationError
from waystation.presentation import text_safety
from waystation.web.limits import Limits
from waystation.web.responses import Refused, refusal

if TYPE_CHECKING:
    from waystation.web.login import Access

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MIN_TOKEN_CHARS = 32
LOGIN = "/login"
STATIC = "/static/"
CALLBACK = "/login/callback"
LINK = "/link"
FORM = "application/x-www-form-urlencoded"
BODY_TIMEOUT_S = 10.0
"""How long the rest of a request is waited for that has its answer."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers would then not say either from where a form of ours comes.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:@/\\\[\]]+)(:[0-9]+)?", re.IGNORECASE)
_SAFE_METHODS = ("GET", "HEAD")


class NotSafeToServe(WaystationError):
    """Serving as asked would let strangers in; the message says what to change."""


class Rate:
    """How often each client may do something: a bucket for each, which fills again with time."""

    def __init__(self, times: int, *, per_s: float, clients: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._per_s, self._clock = float(times), per_s, clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(clients)

    def check(self, client: str) -> None:
        """Count one attempt.

        Raises:
            Refused: The bucket is empty.
        """
        now = self._clock()
        left, since = self._buckets.get(client, (self._times, now))
        left = min(self._times, left + (now - since) * self._times / self._per_s)
        self._buckets[client] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            seconds = math.ceil((1 - left) * self._per_s / self._times)
            text = f"That was often in a short time. Try again in {seconds} s."
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "TooOften", text, {"Retry-After": str(seconds)})


class Guard:
    """Serves requests of people who are logged in, from pages of this server, within limits."""

    def __init__(self, app: ASGIApp, access: "Access", *, names: Sequence[str] = (), limits: Limits) -> None:
        self._app, self._access, self._limits = app, access, limits
        self._names = [name.lower() for name in (*LOOPBACK, *names)]
        rate = partial(Rate, per_s=limits.window_s, clients=limits.counted)
        self._login_rate, self._post_rate = rate(limits.login_attempts), rate(limits.posts)
        self._address_rate = rate(limits.posts_of_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        It is answered once all of it has come, also when it is refused: a proxy that is cut off while it sends takes
        this server for broken, and for a while sends nobody here any more.
        """
        if scope["type"] != "http":
            return
        if raw := scope.get("raw_path"):
            # Routes go by the path as it was sent: an id of an invocation holds `/`, which is escaped there.
            scope = {**scope, "path": raw.decode("latin-1")}
        body = _Body(scope, receive, self._limits.body_bytes)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
                await body.drain()
            await send(message)

        try:
            response = self._response(scope)
        except Refused as refused:
            response = refusal(scope, refused)
        await (response or self._app)(scope, body.receive, answer)

    def _response(self, scope: Scope) -> Response | None:
        """Return the response to a request that does not reach the application.

        Raises:
            Refused: It comes too often, is too large, or is from a page of another site.
        """
        path, address, headers = scope["path"], (scope.get("client") or ("",))[0], Headers(scope=scope)
        if not self._is_own(headers.get("host", "")):
            return PlainTextResponse(self._unknown_name(headers.get("host", "")), HTTPStatus.BAD_REQUEST)
        login = self._access.login_of(scope)
        scope.setdefault("state", {})["login"] = login
        is_post = scope["method"] not in _SAFE_METHODS
        is_login = path in (LOGIN, LINK) or path.startswith(f"{LOGIN}/")
        if is_login:
            self._login_rate.check(address)
        elif path.startswith(STATIC):
            return None
        if is_post:
            self._check_form(headers)
        if is_login:
            return None
        if is_post:
            self._address_rate.check(address)
        if login is None:
            return self._access.stranger(scope)
        if is_post:
            self._post_rate.check(login.csrf)
        return None

    def _is_own(self, host: str) -> bool:
        """Whether this server is reached under a name: a stranger's page could let its own name point here."""
        found = _HOST.fullmatch(host.lower())
        return found is not None and any(
            found["name"] == name or (name.startswith("*") and found["name"].endswith(name[1:])) for name in self._names
        )

    def _unknown_name(self, host: str) -> str:
        remedy = (
            "If people reach it under that name, whoever runs it has to start it with `--url https://NAME` or "
            "`--allow-host NAME`."
        )
        if url := self._access.url:
            remedy = (
                f"The proxy before it has to pass on the header `Host` as browsers send it, for {url}; or start it "
                "with `--allow-host NAME` too."
            )
        return f"This server is not known as {text_safety.line(host)!r}. {remedy}"

    def _check_form(self, headers: Headers) -> None:
        """Check that a request that may change something comes from a page of this server, as far as browsers say."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        # Not the scheme: a proxy that adds TLS speaks without it to this server. Proxies may leave out the port, too.
        own = {urlsplit(self._access.url or "").netloc.lower(), headers.get("host", "").lower()} - {""}
        is_foreign = origin is not None and origin.lower().partition("://")[2] not in own
        if is_foreign or (site is not None and site != "same-origin"):
            text = "This form was sent from a page of another site. Nothing was done; use the pages of this server."
            raise Refused(HTTPStatus.FORBIDDEN, "ForeignForm", text)
        if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "InvalidRequest", f"Only forms are taken, as {FORM}.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limits.body_bytes:
            raise _too_large(self._limits.body_bytes)


class _Body:
    """The body of one request, read within a limit."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        headers = Headers(scope=scope)
        self._receive, self._limit, self._size = receive, limit, 0
        self._is_coming = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers

    async def receive(self) -> Message:
        """Return the next part for the application.

        Raises:
            Refused: The body is too large.
        """
        message = await self._read()
        if self._size > self._limit:
            raise _too_large(self._limit)
        return message

    async def drain(self) -> None:
        """Read what the application has not read, as far as that is worth it."""
        limit = self._size + self._limit
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while self._is_coming and self._size < limit:
                    await self._read()

    async def _read(self) -> Message:
        message = await self._receive()
        self._is_coming = message.get("more_body", False)
        self._size += len(message.get("body", b""))
        return message


def _too_large(limit: int) -> Refused:
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", f"At most {limit:,} bytes are taken.")


def check_place(host: str, *, token: str | None, names: Sequence[str], provider: bool = False) -> None:
    """Check that it is safe to listen at `host`.

    Raises:
        NotSafeToServe: Other machines would reach it, and no secret keeps them out.
    """
    if host in ("127.0.0.1", "::1", "localhost"):
        return
    if not names or (token is None and not provider):
        raise NotSafeToServe(
            f"Listening at {host!r} lets other machines in. Say with --allow-host NAME under which name it is reached, "
            f"put a token of at least {MIN_TOKEN_CHARS} characters into WAYSTATION_WEB_TOKEN, or have people log in at "
            "a provider (--identity FILE with [oidc]), and have a proxy add TLS; or listen at 127.0.0.1."
        )
