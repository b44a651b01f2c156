"""The middleware that checks every request: the server's names, logins, forms from other sites, limits and headers.

All pages except the login pages and the static files require a login. The middleware does not encrypt traffic, so on a
network, put the server behind a proxy that terminates TLS.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.presentation import text_safety
from waystation.web.access import Access
from waystation.web.http_responses import RequestRefused, format_refusal
from waystation.web.limits import Limits, RequestBody, RequestRate, too_large
from waystation.web.paths import API, COMPLETIONS, DECODE, ENCODE, HOOKS, STATIC, enter_root
from waystation.web.shared_reads import current_age_s, record_reads

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
POLICY = "Content-Security-Policy"
HEADERS = {
    POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Do not use `no-referrer`: browsers would then also omit the origin of forms from this server's own pages.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:@/\\\[\]]+)(:[0-9]+)?", re.IGNORECASE)
_SAFE_METHODS = ("GET", "HEAD")


class Guard:
    """Middleware that admits only logged-in clients and forms from this server's own pages, within rate limits.

    Login pages and static files do not require a login.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        *,
        names: Sequence[str] = (),
        limits: Limits,
        public: Collection[str],
        bodies: Mapping[str, Collection[str]] | None = None,
        origins: Sequence[str] = (),
        with_cookies: bool = True,
    ) -> None:
        """Create the middleware.

        `public` contains the paths and templates of paths that do not require a login, `bodies` the content types that
        are accepted below the paths of other protocols, and `origins` the other sites whose pages may send requests. If
        `with_cookies` is false, these pages need a token, even if the person has logged in to this server.
        """
        self._app, self._access, self._limits = app, access, limits
        self._public = [compile_path(path)[0] for path in public]
        self._origins, self._with_cookies = origins, with_cookies
        self._bodies = {**dict.fromkeys((API, ENCODE, DECODE, COMPLETIONS, HOOKS), (JSON,)), **(bodies or {})}
        self._names = [name.lower() for name in (*LOOPBACK, *names)]
        rate = partial(RequestRate, per_s=limits.window_s, clients=limits.counted)
        self._login_rate, self._post_rate = rate(limits.login_attempts), rate(limits.posts)
        self._address_rate = rate(limits.posts_of_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        The response starts only after the whole request has been read, even if the request is refused. Otherwise, a
        proxy that is cut off while sending would mark this server as broken and stop routing to it for a while.
        """
        if scope["type"] != "http":
            return
        scope = enter_root(scope, self._access.root)
        scope["state"] = {**scope.get("state", {})}  # the host's requests keep their own
        body = RequestBody(scope, receive, self._limits)
        record_reads()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                own_policy = headers.get(POLICY)
                headers.update(HEADERS)
                if own_policy:  # that of the files of a front end from another package
                    headers[POLICY] = own_policy
                if age_s := current_age_s():
                    headers["Age"] = str(age_s)
                await body.drain()
                if body.has_more:
                    headers["Connection"] = "close"
            await send(message)

        try:
            response = await self._response(scope)
        except RequestRefused as refused:
            response = format_refusal(scope, refused)
        await (response or self._app)(scope, body.receive, answer)

    async def _response(self, scope: Scope) -> Response | None:
        """Return the response for a request that must not reach the application, or None to pass the request on.

        Raises:
            Refused: The client sends too many requests, too much data, an invalid content type, or a form from another
                site.
        """
        path, address, headers = scope["path"], (scope.get("client") or ("",))[0], Headers(scope=scope)
        if not self._is_own(headers.get("host", "")):
            return PlainTextResponse(self._unknown_name(headers.get("host", "")), HTTPStatus.BAD_REQUEST)
        is_login, is_static = any(known.match(path) for known in self._public), path.startswith(f"{STATIC}/")
        with_cookies = self._with_cookies or headers.get("origin") not in self._origins
        with_tokens = not (is_login or is_static)
        login = await self._access.find_login(scope, with_cookies=with_cookies, with_tokens=with_tokens)
        scope["state"]["login"] = login
        is_post = scope["method"] not in _SAFE_METHODS
        if is_login:
            self._login_rate.check(address)
        elif is_static:
            return None
        if is_post:
            self._check_origin(headers)
            self._check_content(headers, self._find_accepted(path), is_needed=scope["method"] != "DELETE")
        if is_login:
            return None
        if is_post:
            self._address_rate.check(address)
        if path.startswith((COMPLETIONS, HOOKS)):  # the handler verifies the machine's only proof: URL or signature
            return None
        if login is None:
            return self._access.refuse_stranger(scope)
        if is_post:
            self._post_rate.check(login.owner)
        return None

    def _is_own(self, host: str) -> bool:
        """Return whether `host` is one of this server's names.

        Others are refused, because another site could point its own name at this server's address.
        """
        match = _HOST.fullmatch(host.lower())
        return match is not None and any(
            match["name"] == name or (name.startswith("*") and match["name"].endswith(name[1:])) for name in self._names
        )

    def _unknown_name(self, host: str) -> str:
        remedy = "If that name is correct, restart the server with `--url https://NAME` or `--allow-host NAME`."
        if url := self._access.url:
            remedy = (
                f"Have the proxy forward the browser's `Host` header, for {url}, or restart the server with "
                "`--allow-host NAME`."
            )
        return f"This server is not known as {text_safety.format_line(host)!r}. {remedy}"

    def _check_origin(self, headers: Headers) -> None:
        """Check that a form comes from one of this server's pages, as far as the browser's headers reveal its origin.

        Raises:
            Refused: The form comes from another site.
        """
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if origin in self._origins:
            return
        # Do not compare the scheme, because a proxy that terminates TLS uses plain HTTP here. Proxies may also drop the
        # port.
        own = {urlsplit(self._access.url or "").netloc.lower(), headers.get("host", "").lower()} - {""}
        is_foreign = origin is not None and origin.lower().partition("://")[2] not in own
        if is_foreign or (site is not None and site != "same-origin"):
            text = "This form came from a page on another site, so nothing was done. Use the pages of this server."
            raise RequestRefused(HTTPStatus.FORBIDDEN, "ForeignForm", text)

    def _find_accepted(self, path: str) -> Collection[str]:
        """Return the content types that a path accepts: those of the longest prefix, or forms."""
        return self._bodies.get(max(filter(path.startswith, self._bodies), key=len, default=""), (FORM,))

    def _check_content(self, headers: Headers, accepted: Collection[str], *, is_needed: bool) -> None:
        """Check a body's size and content type.

        Raises:
            Refused: The body is too large, or its content type is not accepted.
        """
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in accepted and (is_needed or kind):
            text = f"The content type must be {' or '.join(filter(None, accepted))}."
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "InvalidRequest", text)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limits.body_bytes:
            raise too_large(self._limits.body_bytes)
