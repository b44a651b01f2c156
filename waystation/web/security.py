"""Who may talk to the web server, and what a browser may do with its pages.

Everything but the login and the static files needs a login: a browser's, in exchange for a link that works once; or a
program's token. Nothing here protects the traffic itself: elsewhere than on this machine a proxy has to add TLS.
"""

import getpass
import math
import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.core.errors import WaystationError
from waystation.presentation.text_safety import line
from waystation.web.logins import Login, Logins, Rate, same
from waystation.web.posted import check_origin
from waystation.web.rendering import page, problem
from waystation.web.streams import Refused

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MIN_TOKEN_CHARS = 32
LOGIN = "/login"
STATIC = "/static/"
CALLBACK = "/login/callback"
LINK = "/link"
CALLS = "/approvals/"
KNOCKS, POSTS, POSTS_OF_ONE_ADDRESS = 30, 120, 600
"""Attempts to log in, forms of one login, and forms from one address, each within `WINDOW_S`."""
WINDOW_S = 60.0
MAX_VISITS = 1_000
"""Calls that are open by a link at a time. They are counted apart: whoever opens many logs nobody out."""

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


class NotSafeToServe(WaystationError):
    """Serving as asked would let strangers in; the message says what to change."""


class Access:
    """The tokens of one web server, and who is logged in."""

    def __init__(
        self,
        *,
        token: str | None = None,
        cookie: str = "waystation",
        person: str = "",
        secure: bool = False,
        told: Callable[[str], None],
    ) -> None:
        """Begin with a link for the first browser.

        Args:
            token: What programs send as `Authorization: Bearer …`; without it none gets in.
            cookie: Name of the cookie. Servers on several ports of one machine share their cookies, so each has a name.
            person: Who opens the link, as recorded with answers; by default the user of the operating system.
            secure: Whether people reach it by https, which a proxy adds.
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
        self._visit = f"{cookie}-link"
        self._person, self._secure = person or login_name(), secure
        self.provider = self.links = False
        """Whether people can log in at an identity provider, and whether links open calls."""
        self._logins, self._visits = Logins(), Logins(most=MAX_VISITS)
        self._once = ""
        self._offer()

    def _offer(self) -> None:
        self._once = secrets.token_urlsafe(32)
        self._told(f"{LOGIN}?token={self._once}")

    def login(self, request: Request) -> Response:
        """Exchange the token of a link for a cookie; the link is then used up, and another one is told."""
        if request.method != "GET":  # of a preview, which must not use it up
            return PlainTextResponse("", HTTPStatus.METHOD_NOT_ALLOWED)
        if not same(request.query_params.get("token", ""), self._once):
            text = "This login link was used before, or is an older one. The newest is where the server was started."
            if "token" not in request.query_params:
                text = "Open the link that was printed where this server was started, to log in."
            return problem(HTTPStatus.FORBIDDEN, text)
        self._offer()
        return self.enter(request, Login(self._person))

    def enter(self, request: Request, login: Login, next: str = "/") -> Response:
        """Log a browser in and send it on; by a link, to the one call that it opens."""
        visits = bool(login.only)
        response = RedirectResponse(_place(login.only) if visits else next, HTTPStatus.SEE_OTHER)
        # Not `strict`: whoever comes by a link in a mail would seem to be a stranger. Nothing changes by following one.
        response.set_cookie(
            self._visit if visits else self._cookie,
            (self._visits if visits else self._logins).add(login),
            # Several calls may be open at a time, each by its link: what is typed into one page outlives the next.
            path=_place(login.only) if visits else "/",
            secure=self._secure or request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return response

    def keep_state(self, request: Request, response: Response, state: str, lasts_s: int) -> None:
        """Bind a login at a provider to the browser that began it."""
        secure = self._secure or request.url.scheme == "https"
        name = f"{self._cookie}-state"
        response.set_cookie(name, state, lasts_s, path=CALLBACK, secure=secure, httponly=True, samesite="lax")

    def state(self, request: Request) -> str | None:
        """Return the login at a provider that this browser began."""
        return request.cookies.get(f"{self._cookie}-state")

    def leave(self, request: Request) -> Response:
        """Log a browser out."""
        self._logins.end(request.cookies.get(self._cookie, ""))
        response = page("left.html", provider=self.provider)
        response.delete_cookie(self._cookie, path="/", httponly=True, samesite="lax")
        return response

    def stranger(self, scope: Scope) -> Response:
        """Return what a request gets that comes from nobody who is logged in."""
        in_browser = "text/html" in Headers(scope=scope).get("accept", "")
        by_person = scope["method"] == "GET" and in_browser
        wanted = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        place = f"{LOGIN}?next={quote(wanted, safe='')}" if self.provider else ""
        if by_person and self.links and scope["path"].startswith(CALLS):
            # Perhaps it comes by a link: what proves that is where only a script can read it.
            return page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem="")
        if by_person and place:
            return RedirectResponse(place, HTTPStatus.SEE_OTHER)
        way = (
            "open a page of this server in a browser"
            if self.provider
            else "open the link that was printed where it was started"
        )
        text = (
            f"Log in first: {way}; programs send `Authorization: Bearer TOKEN`, with the token in WAYSTATION_WEB_TOKEN."
        )
        if scope["method"] == "POST":
            nothing = "Nothing was sent: this browser is not logged in, or not any more."
            if in_browser and place and scope["path"].startswith(CALLS):
                return page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem=nothing)
            text = f"{nothing} {text}"
        return refusal(scope, Refused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", text, {"WWW-Authenticate": "Bearer"}))

    def login_of(self, scope: Scope) -> Login | None:
        """Return who sends a request, None for a stranger."""
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if self._token is not None and kind.lower() == "bearer" and same(given.strip(), self._token):
            return Login("program", browser=False)
        cookies = Request(scope).cookies
        if (login := self._logins.find(cookies.get(self._cookie, ""))) is not None:
            return login
        visit = self._visits.find(cookies.get(self._visit, ""))
        return visit if visit is not None and scope["path"] == _place(visit.only) else None


class Guard:
    """Stands before an application: refuses who is not logged in, and adds the headers that bind browsers."""

    def __init__(self, app: ASGIApp, access: Access, url: str | None = None) -> None:
        self._app, self._access = app, access
        self._place = urlsplit(url or "").netloc
        self._knocks = Rate(KNOCKS, per_s=WINDOW_S)
        self._posts = Rate(POSTS, per_s=WINDOW_S)
        self._from_address = Rate(POSTS_OF_ONE_ADDRESS, per_s=WINDOW_S)

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

        try:
            answer = self._check(scope)
        except Refused as refused:
            answer = refusal(scope, refused)
        await (answer or self._app)(scope, receive, bound)

    def _check(self, scope: Scope) -> Response | None:
        """Return what to answer instead of letting a request through.

        Raises:
            Refused: It comes too often, or from a page of another site.
        """
        path, method, address = scope["path"], scope["method"], (scope.get("client") or ("",))[0]
        login = self._access.login_of(scope)
        scope.setdefault("state", {})["login"] = login
        if path in (LOGIN, LINK) or path.startswith(f"{LOGIN}/"):
            _slow(self._knocks.wait(address))
            if method not in ("GET", "HEAD"):
                check_origin(Headers(scope=scope), self._place)
            return None
        if path.startswith(STATIC):
            return None
        if method not in ("GET", "HEAD"):
            check_origin(Headers(scope=scope), self._place)
            _slow(self._from_address.wait(address))
        if login is None:
            return self._access.stranger(scope)
        if method not in ("GET", "HEAD"):
            _slow(self._posts.wait(login.csrf))
        return None


class OwnNames:
    """Refuses requests for other names than those under which the server is reached, and says what to change."""

    def __init__(self, app: ASGIApp, names: Sequence[str], url: str | None = None) -> None:
        self._app, self._names, self._url = app, names, url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        known = False

        async def pass_on(*_: object) -> None:
            nonlocal known
            known = True

        async def drop(_: Message) -> None:
            pass

        await TrustedHostMiddleware(pass_on, self._names, www_redirect=False)(scope, receive, drop)
        if known:
            await self._app(scope, receive, send)
            return
        host = line(Headers(scope=scope).get("host", ""))
        remedy = (
            f"The proxy before it has to pass on the header `Host` as browsers send it, for {self._url}; or start it "
            "with `--allow-host NAME` too."
            if self._url
            else "If people reach it under that name, whoever runs it has to start it with `--url https://NAME` or "
            "`--allow-host NAME`."
        )
        text = f"This server is not known as {host!r}. {remedy}"
        answer = PlainTextResponse(text, HTTPStatus.BAD_REQUEST, HEADERS)
        await answer(scope, receive, send)


class EscapedPaths:
    """Routes by the path as it was sent: an id of an invocation holds `/`, which is escaped there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if raw := scope.get("raw_path"):
            scope = {**scope, "path": raw.decode("latin-1")}
        await self._app(scope, receive, send)


def check_place(host: str, *, token: str | None, names: Sequence[str], provider: bool = False) -> None:
    """Look whether it is safe to listen at `host`.

    Raises:
        NotSafeToServe: Others than this machine's users would reach it, and no secret of one's own keeps them out.
    """
    if host in ("127.0.0.1", "::1", "localhost"):
        return
    if not names or (token is None and not provider):
        raise NotSafeToServe(
            f"Listening at {host!r} lets other machines in. Say with --allow-host NAME under which name it is reached, "
            f"put a token of at least {MIN_TOKEN_CHARS} characters into WAYSTATION_WEB_TOKEN, or have people log in at "
            "a provider (--identity FILE with [oidc]), and have a proxy add TLS; or listen at 127.0.0.1."
        )


def login_name() -> str:
    """Return who runs this program, as far as the operating system says."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return ""


def refusal(scope: Scope, refused: Refused) -> Response:
    """Return a refusal as its reader wants it: a page, or JSON."""
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        return refused.response()
    shown = problem(refused.status, refused.message, login=scope.get("state", {}).get("login"))
    shown.headers.update(refused.headers)
    return shown


def _place(approval_id: str) -> str:
    return f"{CALLS}{quote(approval_id, safe='')}"


def _slow(wait_s: float) -> None:
    if wait_s:
        seconds = math.ceil(wait_s)
        text = f"That was often in a short time. Try again in {seconds} s."
        raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "TooOften", text, {"Retry-After": str(seconds)})
