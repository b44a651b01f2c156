"""Who may talk to the web server, and what a browser may do with its pages.

Everything but the login and the static files needs a login: a browser's, in exchange for a link that works once; or a
program's token. Nothing here protects the traffic itself: elsewhere than on this machine a proxy has to add TLS.
"""

import hmac
import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.core.errors import WaystationError
from waystation.web.rendering import problem

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MIN_TOKEN_CHARS = 32
LOGIN = "/login"
STATIC = "/static/"
MAX_LOGINS = 100
"""Browsers that are logged in at a time; one more logs the first of them out."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class NotSafeToServe(WaystationError):
    """Serving as asked would let strangers in; the message says what to change."""


class Access:
    """The tokens of one web server."""

    def __init__(self, *, token: str | None = None, cookie: str = "waystation", told: Callable[[str], None]) -> None:
        """Begin with a link for the first browser.

        Args:
            token: What programs send as `Authorization: Bearer …`; without it none gets in.
            cookie: Name of the cookie. Servers on several ports of one machine share their cookies, so each has a name.
            told: Is given each new login path, for whoever runs the server to open.

        Raises:
            NotSafeToServe: The token can be guessed.
        """
        if token is not None and len(token) < MIN_TOKEN_CHARS:
            raise NotSafeToServe(
                f"The token has {len(token)} characters; give one of at least {MIN_TOKEN_CHARS}, such as from "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
            )
        self._token, self._cookie, self._told = token, cookie, told
        self._logins: list[str] = []
        self._once = ""
        self._offer()

    def _offer(self) -> None:
        self._once = secrets.token_urlsafe(32)
        self._told(f"{LOGIN}?token={self._once}")

    def login(self, request: Request) -> Response:
        """Exchange the token of a link for a cookie; the link is then used up, and another one is told."""
        if request.method != "GET":  # of a preview, which must not use it up
            return PlainTextResponse("", HTTPStatus.METHOD_NOT_ALLOWED)
        if not _same(request.query_params.get("token", ""), self._once):
            text = "This login link was used before, or is an older one. The newest is where the server was started."
            return problem(HTTPStatus.FORBIDDEN, text)
        login = secrets.token_urlsafe(32)
        self._logins = [*self._logins, login][-MAX_LOGINS:]
        self._offer()
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        secure = request.url.scheme == "https"
        response.set_cookie(self._cookie, login, path="/", secure=secure, httponly=True, samesite="strict")
        return response

    def allows(self, scope: Scope) -> bool:
        """Whether a request comes from someone who is logged in."""
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if self._token is not None and kind.lower() == "bearer" and _same(given.strip(), self._token):
            return True
        cookie = Request(scope).cookies.get(self._cookie, "")
        return any([_same(cookie, login) for login in self._logins])


class Guard:
    """Stands before an application: refuses who is not logged in, and adds the headers that bind browsers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return

        async def bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        path = scope["path"]
        open_to_all = path == LOGIN or path.startswith(STATIC)
        if open_to_all or self._access.allows(scope):
            await self._app(scope, receive, bound)
        else:
            await _refusal(scope)(scope, receive, bound)


class EscapedPaths:
    """Routes by the path as it was sent: an id of an invocation holds `/`, which is escaped there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if raw := scope.get("raw_path"):
            scope = {**scope, "path": raw.decode("latin-1")}
        await self._app(scope, receive, send)


def check_place(host: str, *, token: str | None, names: Sequence[str]) -> None:
    """Look whether it is safe to listen at `host`.

    Raises:
        NotSafeToServe: Others than this machine's users would reach it, and no secret of one's own keeps them out.
    """
    if host in ("127.0.0.1", "::1", "localhost"):
        return
    if token is None or not names:
        raise NotSafeToServe(
            f"Listening at {host!r} lets other machines in. Say with --allow-host NAME under which name it is reached, "
            f"put a token of at least {MIN_TOKEN_CHARS} characters into WAYSTATION_WEB_TOKEN, and have a proxy add "
            "TLS; or listen at 127.0.0.1."
        )


def _refusal(scope: Scope) -> Response:
    text = (
        "Log in first: open the link that was printed where the server was started; programs send "
        "`Authorization: Bearer TOKEN`, with the token in WAYSTATION_WEB_TOKEN."
    )
    headers = {"WWW-Authenticate": "Bearer"}
    if "text/html" in Headers(scope=scope).get("accept", ""):
        refusal: Response = problem(HTTPStatus.UNAUTHORIZED, text)
        refusal.headers.update(headers)
        return refusal
    return JSONResponse({"error": {"type": "NotLoggedIn", "message": text}}, HTTPStatus.UNAUTHORIZED, headers)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
