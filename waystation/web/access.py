"""Access control: the middleware that checks every request, the logins, and the ways to log in.

People log in with the link that the server prints, through an OpenID provider, or with a link to one call. Programs
send a token. A cookie contains only a random ID; the login that it identifies stays in this process's memory. All pages
except the login pages and the static files require a login. This module does not encrypt traffic, so on a network, put
the server behind a proxy that terminates TLS.
"""

import asyncio
import contextlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from cachetools import FIFOCache, LRUCache, TLRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation import core
from waystation.configuration import login_name
from waystation.core import ROLE, NotAllowed, TokenSigner, Verified, WaystationError
from waystation.presentation import text_safety
from waystation.web.forms import parse_form, read_form
from waystation.web.http_responses import Refused, accepts_html, format_refusal, render_page
from waystation.web.limits import Limits
from waystation.web.permissions import ROLES
from waystation.web.shared_reads import current_age_s, record_reads

if TYPE_CHECKING:
    from waystation.approvers.identity import Gateway, Links, OidcLogin, Sealer

CALLS = "/approvals/"
LOGIN_S = 8 * 3600.0
"""How long a login through the provider lasts. After that, the provider must confirm the identity again. A login from a
link to a call lasts at most as long."""
STATE_S = 600
"""How long a person may take to log in at the provider."""
CLOCK_CHECK_S = 60.0
"""How often a wait for a login's expiry reads the clock again, which timers do not follow if it is set or suspended."""
MAX_FORMS = 500
"""Maximum number of forms to remember per login, whether sent or not. The oldest forms are dropped first."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MIN_TOKEN_CHARS = 32
LOGIN = "/login"
LOGOUT = "/logout"
STATIC = "/static"
CALLBACK = "/login/callback"
LINK = "/link"
API = "/api/"
ENCODE = "/encode"
DECODE = "/decode"
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
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


class NotSafeToServe(WaystationError):
    """The settings would let strangers in. The message names the setting to change.

    Change the setting that the message names.
    """


@dataclass(eq=False)
class FormUse:
    """Tracks whether a form, which can be sent only once, has been sent."""

    sent: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Login:
    """The login of a person with a browser, or of a program with the token."""

    person: str
    """The person's name. If no provider has confirmed an identity, answers are recorded under this name. Workers can
    verify it only if the server has a gateway."""
    verified: Verified | None = None
    """The identity that the identity provider confirmed, if any."""
    until: float = float("inf")
    """The time when the login expires, in seconds since 1970, or infinity if it does not expire."""
    browser: bool = True
    """Whether this login may send forms."""
    roles: frozenset[str] = ROLES
    """The roles in the web application. The default, all roles, is for people who log in without a provider."""
    only: str = ""
    """Approval ID of the only call that this login may open. Empty unless the login comes from a link to a call."""
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """A token that only this login's forms contain."""
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when the person logs out, or when newer logins displace this one."""
    _seen: FIFOCache[str, bool] = field(default_factory=lambda: FIFOCache(MAX_FORMS), repr=False)
    """The calls that this person has viewed, by approval ID."""
    _forms: FIFOCache[tuple[str, str], FormUse] = field(default_factory=lambda: FIFOCache(MAX_FORMS), repr=False)

    @property
    def subject(self) -> str:
        """The name to record with answers: the verified one, if there is one."""
        return self.verified.subject if self.verified else self.person

    @property
    def owner(self) -> str:
        """The key for limits, which identifies the person or, if the person is not verified, only this login."""
        return f"{self.verified.issuer} {self.verified.subject}" if self.verified else self.csrf

    @property
    def names(self) -> tuple[str, ...]:
        """The names, including roles, that policies and claims may use to refer to this person."""
        if self.verified is None:
            return (self.person,)
        return self.verified.subject, *(f"{ROLE}{role}" for role in self.verified.roles)

    async def wait_until_over(self) -> None:
        """Wait until the login has ended or expired."""
        while not self.over.is_set() and (rest_s := self.until - time.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(rest_s, CLOCK_CHECK_S)):
                    await self.over.wait()

    def offer_form(self, about: str) -> str:
        """Return a new nonce for a form about `about`. A form with this nonce can be sent only once."""
        nonce = secrets.token_urlsafe(18)
        self._forms[about, nonce] = FormUse()
        return nonce

    def find_form(self, nonce: str, about: str) -> FormUse | None:
        """Return the form about `about` with a nonce, or None if no such form was offered or it has been dropped."""
        return self._forms.get((about, nonce))

    def is_first_view(self, approval_id: str) -> bool:
        """Record that this person has viewed a call, and return whether this was the first time in this login."""
        is_first = approval_id not in self._seen
        self._seen[approval_id] = True
        return is_first


@dataclass(frozen=True, kw_only=True)
class Gatekeeper:
    """The parts of an identity configuration that a web server uses. Each part is optional."""

    gateway: "Gateway | None" = None
    sealer: "Sealer | None" = None
    oidc: "OidcLogin | None" = None
    links: "Links | None" = None

    @classmethod
    def from_file(cls, file: str | Path, namespace: str) -> "Gatekeeper":
        """Read an identity configuration.

        Raises:
            InvalidConfiguration: The file is invalid, or it lacks a section that another section requires.
        """
        from waystation.approvers.identity import Configuration, Gateway, Links, OidcLogin, Sealer

        configuration = Configuration.read(file)
        envelope = configuration.envelope
        if configuration.gateway is None and (configuration.links is None or (envelope and envelope.private_key)):
            raise configuration.make_missing_section_error(
                "gateway", "`waystation web` finds no settings in this file; pass gateway.toml"
            )
        if configuration.oidc is not None and configuration.gateway is None:
            raise configuration.make_missing_section_error("gateway", "workers verify logins with its key")
        return cls(
            gateway=Gateway.of(configuration) if configuration.gateway else None,
            sealer=Sealer.of(configuration) if configuration.gateway else None,
            oidc=OidcLogin.of(configuration) if configuration.oidc else None,
            links=Links.of(configuration, namespace=namespace) if configuration.links else None,
        )

    def roles_of(self, person: str) -> frozenset[str]:
        """Return the web roles of a person that no provider has identified. Without a provider, these are all roles."""
        return self.oidc.admission.roles_of(Verified(subject=person)) if self.oidc else ROLES

    def identify(self, login: Login) -> Verified | None:
        """Return the identity that workers will verify, or None if they will receive only an unverified name."""
        return None if self.gateway is None else login.verified or Verified(subject=login.person)

    def make_signer(self, login: Login) -> TokenSigner | None:
        """Return a function that creates an answer's token, which is signed for the person and then encrypted.

        Return None if the server cannot sign and encrypt tokens.
        """
        who = self.identify(login)
        if who is None or self.gateway is None or self.sealer is None:
            return None
        signer, sealer = self.gateway.signer(who.subject, who.roles), self.sealer

        def make(*, namespace: str, approval_id: str, answer: Mapping[str, Any] | core.Request) -> str:
            place = {"namespace": namespace, "approval_id": approval_id}
            return sealer.seal(signer(**place, answer=answer), **place, answer=answer)

        return make


class Access:
    """The logins of one web server, its tokens, and the pages for logging in and out."""

    def __init__(
        self,
        *,
        announce: Callable[[str], None],
        token: str | None = None,
        cookie: str = "waystation",
        person: str = "",
        secure: bool = False,
        url: str | None = None,
        gatekeeper: Gatekeeper | None = None,
        limits: Limits | None = None,
        is_local: bool = True,
    ) -> None:
        """Set up access control, and announce the login link for the first browser.

        Args:
            announce: Called with each new login path. The person running the server opens that path in a browser.
            token: The token that programs send as `Authorization: Bearer …`. Without a token, programs have no access.
            cookie: Name of the cookie. Servers on different ports of the same machine share cookies, so give each
                server a different name.
            person: Name recorded for the person who uses the login link. Defaults to the operating system user.
            secure: Whether users reach the server over HTTPS, through a proxy that terminates TLS.
            url: The address that users enter, if it differs from the address that the server listens on.
            gatekeeper: Verifies identities. Without it, the name given at login is not verified.
            limits: Limits on the number of logins.
            is_local: Whether only this machine can reach the server. If so, and if there is no provider, programs with
                the access token have all roles. Otherwise, they have only the role `viewer`.

        Raises:
            NotSafeToServe: The token is too short.
        """
        if token is not None and len(token) < MIN_TOKEN_CHARS:
            raise NotSafeToServe(
                f"The token has {len(token)} characters; it needs at least {MIN_TOKEN_CHARS}. Generate one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
            )
        limits = limits or Limits()
        self.url, self.gatekeeper = url, gatekeeper or Gatekeeper()
        self._token, self._cookie, self._announce = token, cookie, announce
        self._person, self._secure = person or login_name() or "", secure
        self._logins, self._visits = make_login_cache(limits.logins), make_login_cache(limits.visits)
        is_trusted = is_local and self.gatekeeper.oidc is None
        name, roles = (self._person, ROLES) if is_trusted else ("program", frozenset({"viewer"}))
        self._program = Login(name, browser=False, roles=roles)
        self._link_token = ""
        self._offer()

    def find_login(self, scope: Scope) -> Login | None:
        """Return the login that a request belongs to, or None if the request has no valid cookie or token.

        A login from a link to a call is valid only for that call's page.
        """
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if self._token is not None and kind.lower() == "bearer" and is_equal(token.strip(), self._token):
            return self._program
        cookies = Request(scope).cookies
        if (login := self._logins.get(cookies.get(self._cookie, ""))) is not None:
            return login
        visit = self._visits.get(cookies.get(f"{self._cookie}-link", ""))
        return visit if visit is not None and scope["path"] == format_call_path(visit.only) else None

    def refuse_stranger(self, scope: Scope) -> Response:
        """Return the response for a request without a login: a redirect to the provider, a page, or an error."""
        in_browser, is_call = accepts_html(scope), scope["path"].startswith(CALLS)
        by_person = scope["method"] == "GET" and in_browser
        target = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        remedy, place = "open the link that the server printed when it started", ""
        if self.gatekeeper.oidc is not None:
            remedy, place = "open a page of this server in a browser", f"{LOGIN}?next={quote(target, safe='')}"
        if by_person and is_call and self.gatekeeper.links is not None:
            # The URL's fragment may contain a link token, which only a script on this page can read.
            return render_page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem="")
        if by_person and place:
            return RedirectResponse(place, HTTPStatus.SEE_OTHER)
        text = (
            f"Log in first: {remedy}. Programs send `Authorization: Bearer TOKEN` with the token in "
            "WAYSTATION_WEB_TOKEN."
        )
        if scope["method"] == "POST":
            problem = "Nothing was sent: this browser is not logged in, or its login has ended."
            if in_browser and place and is_call:
                return render_page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem=problem)
            text = f"{problem} {text}"
        return format_refusal(
            scope, Refused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", text, {"WWW-Authenticate": "Bearer"})
        )

    async def log_in(self, request: Request) -> Response:
        """Redirect to the provider, or exchange the token in a printed link for a cookie.

        A link works only once. When it is used, the next link is announced.

        Raises:
            Refused: The token is missing although there is no provider, or it is not that of the newest link.
        """
        if request.method != "GET":  # link previews send HEAD requests, which must not use up the link
            return Response("", HTTPStatus.METHOD_NOT_ALLOWED)
        token = request.query_params.get("token")
        if token is None and self.gatekeeper.oidc is not None:
            return await self._go_to_provider(request, self.gatekeeper.oidc)
        if token is None or not is_equal(token, self._link_token):
            used = "This login link was already used, or there is a newer one. Open the newest link in the terminal."
            text = "To log in, open the newest link in the server's terminal." if token is None else used
            raise Refused(HTTPStatus.FORBIDDEN, "NotAllowed", text)
        self._offer()
        return self._enter(request, Login(self._person, roles=self.gatekeeper.roles_of(self._person)))

    async def _go_to_provider(self, request: Request, oidc: "OidcLogin") -> Response:
        here = self.url or f"{request.url.scheme}://{request.headers.get('host', '')}"
        next = sanitize_next(request.query_params.get("next", ""))
        address, state = await oidc.begin(f"{here.rstrip('/')}{CALLBACK}", next)
        response = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        # The cookie binds the login to the browser that started it.
        self._set_cookie(request, response, f"{self._cookie}-state", state, CALLBACK, STATE_S)
        return response

    async def return_from_provider(self, request: Request) -> Response:
        assert self.gatekeeper.oidc is not None
        state = request.cookies.get(f"{self._cookie}-state")
        result = await self.gatekeeper.oidc.finish(dict(request.query_params), state)
        until = time.time() + LOGIN_S
        login = Login(result.name or result.who.subject, verified=result.who, until=until, roles=result.roles)
        return self._enter(request, login, result.next)

    async def open_link(self, request: Request) -> Response:
        """Give a browser access to the single call that a link is for. The call itself does not change.

        The token is in the link's URL fragment, which browsers do not send and logs do not contain. A script on the
        page that the link opens posts the token to this route.

        Raises:
            NotAllowed: The link is not valid, and the form does not say where the person can log in instead.
        """
        assert self.gatekeeper.links is not None
        form = parse_form(await request.body())
        try:
            link = self.gatekeeper.links.read(form.get("link", ""))
        except NotAllowed as refused:
            if place := form.get("place"):  # offer a login instead, because links expire before calls do
                text = str(refused)
                return render_page("link.html", code=HTTPStatus.FORBIDDEN, place=sanitize_next(place), problem=text)
            raise
        decides = self.gatekeeper.links.decide and link.person is not None
        until = min(link.until, time.time() + LOGIN_S)
        person = link.person or ""
        roles = self.gatekeeper.roles_of(person) if person else frozenset()
        return self._enter(request, Login(person, until=until, browser=decides, only=link.approval_id, roles=roles))

    async def log_out(self, request: Request) -> Response:
        await read_form(request)
        self._logins.pop(request.cookies.get(self._cookie, ""), None)
        response = render_page("left.html", provider=self.gatekeeper.oidc is not None)
        response.delete_cookie(self._cookie, path="/", httponly=True, samesite="lax")
        return response

    def _enter(self, request: Request, login: Login, next: str = "/") -> Response:
        """Log a browser in, and redirect it to `next` or, after a link to a call, to that call."""
        name, logins, path = self._cookie, self._logins, "/"
        if login.only:
            # Scope the cookie to the call's path, so that opening one link does not log out the page of another.
            name, logins, path = f"{self._cookie}-link", self._visits, format_call_path(login.only)
            next = path
        id = secrets.token_urlsafe(32)
        logins.pop(request.cookies.get(name, ""), None)  # the browser forgets it
        logins[id] = login
        response = RedirectResponse(next, HTTPStatus.SEE_OTHER)
        self._set_cookie(request, response, name, id, path)
        return response

    def _set_cookie(
        self, request: Request, response: Response, name: str, value: str, path: str, age_s: int | None = None
    ) -> None:
        secure = self._secure or request.url.scheme == "https"
        # Do not use `strict`: requests from links in emails would lack the cookie. GET requests change nothing anyway.
        response.set_cookie(name, value, age_s, path=path, secure=secure, httponly=True, samesite="lax")

    def _offer(self) -> None:
        self._link_token = secrets.token_urlsafe(32)
        self._announce(f"{LOGIN}?token={self._link_token}")


class _LoginCache(TLRUCache[str, Login]):
    """Logins by cookie ID. A login that is removed is over."""

    def __delitem__(self, id: str) -> None:
        if login := self.get(id):
            login.over.set()
        super().__delitem__(id)


def make_login_cache(maxsize: int, clock: Callable[[], float] = time.time) -> TLRUCache[str, Login]:
    """Return a cache of logins by cookie ID. Each entry expires when its login ends."""
    return _LoginCache(maxsize, lambda _id, login, _now: login.until, timer=clock)


def format_call_path(approval_id: str) -> str:
    """Return the URL path of a call's page."""
    return f"{CALLS}{quote(approval_id, safe='')}"


def sanitize_next(path: str) -> str:
    """Return `path` if it is a path on this server, or `/` if not: a login must not redirect to another site."""
    # Browsers treat a backslash as a slash, and ignore tabs and line breaks.
    if not (path.startswith("/") and path.isascii() and path.isprintable()) or "\\" in path:
        return "/"
    parts = urlsplit(path)
    return path if not parts.scheme and not parts.netloc and not path.startswith("//") else "/"


def is_equal(value: str, expected: str) -> bool:
    """Compare two strings in constant time."""
    return hmac.compare_digest(value.encode(errors="replace"), expected.encode())


class RateLimit:
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
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "TooOften", text, {"Retry-After": str(seconds)})


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
        origins: Sequence[str] = (),
    ) -> None:
        """Create the middleware.

        `public` contains the paths that do not require a login, and `origins` the other sites whose pages may send
        requests.
        """
        self._app, self._access, self._limits, self._public = app, access, limits, public
        self._origins = origins
        self._names = [name.lower() for name in (*LOOPBACK, *names)]
        rate = partial(RateLimit, per_s=limits.window_s, clients=limits.counted)
        self._login_rate, self._post_rate = rate(limits.login_attempts), rate(limits.posts)
        self._address_rate = rate(limits.posts_of_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        The response starts only after the whole request has been read, even if the request is refused. Otherwise, a
        proxy that is cut off while sending would mark this server as broken and stop routing to it for a while.
        """
        if scope["type"] != "http":
            return
        if raw := scope.get("raw_path"):
            # Route by the raw path, because it contains the `/` in invocation IDs in escaped form.
            scope = {**scope, "path": raw.decode("latin-1")}
        body = _Body(scope, receive, self._limits)
        record_reads()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if age_s := current_age_s():
                    headers["Age"] = str(age_s)
                await body.drain()
                if body.has_more:
                    headers["Connection"] = "close"
            await send(message)

        try:
            response = self._response(scope)
        except Refused as refused:
            response = format_refusal(scope, refused)
        await (response or self._app)(scope, body.receive, answer)

    def _response(self, scope: Scope) -> Response | None:
        """Return the response for a request that must not reach the application, or None to pass the request on.

        Raises:
            Refused: The client sends too many requests, too much data, an invalid content type, or a form from another
                site.
        """
        path, address, headers = scope["path"], (scope.get("client") or ("",))[0], Headers(scope=scope)
        if not self._is_own(headers.get("host", "")):
            return PlainTextResponse(self._unknown_name(headers.get("host", "")), HTTPStatus.BAD_REQUEST)
        login = self._access.find_login(scope)
        scope.setdefault("state", {})["login"] = login
        is_post = scope["method"] not in _SAFE_METHODS
        is_login = path in self._public
        if is_login:
            self._login_rate.check(address)
        elif path.startswith(f"{STATIC}/"):
            return None
        if is_post:
            self._check_origin(headers)
            self._check_content(headers, JSON if path.startswith((API, ENCODE, DECODE)) else FORM)
        if is_login:
            return None
        if is_post:
            self._address_rate.check(address)
        if login is None:
            return self._access.refuse_stranger(scope)
        if is_post:
            self._post_rate.check(login.csrf)
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
            raise Refused(HTTPStatus.FORBIDDEN, "ForeignForm", text)

    def _check_content(self, headers: Headers, kind: str) -> None:
        """Check a body's size and content type.

        Raises:
            Refused: The body is too large, or has another content type than `kind`.
        """
        if headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "InvalidRequest", f"The content type must be {kind}.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limits.body_bytes:
            raise _too_large(self._limits.body_bytes)


class _Body:
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
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "TooSlow", text) from None
        if self._size > self._limit:
            raise _too_large(self._limit)
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


def _too_large(limit: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", f"The request is too large: the limit is {limit:,} bytes."
    )


def check_host(host: str, *, names: Sequence[str], provider: bool = False) -> None:
    """Check that it is safe to listen on `host`.

    Raises:
        NotSafeToServe: Other machines could reach the server, but no host name is set, or no provider identifies the
            people who use it.
    """
    if host in ("127.0.0.1", "::1", "localhost"):
        return
    if not names or not provider:
        raise NotSafeToServe(
            f"Listening at {host!r} lets other machines in. Listen at 127.0.0.1, or protect the server: name its host "
            "with --allow-host NAME, have a proxy add TLS, and let people log in at a provider (--identity FILE with "
            "[oidc])."
        )


def check_provider(gatekeeper: Gatekeeper, *, allow_any_account: bool) -> None:
    """Check that not everybody with an account at a public provider can log in, unless `allow_any_account` is set.

    Raises:
        NotSafeToServe: Anyone can create an account at the provider, and neither the configuration nor
            `allow_any_account` says who may log in.
    """
    if gatekeeper.oidc is not None and gatekeeper.oidc.admission.is_open and not allow_any_account:
        raise NotSafeToServe(
            f"Anyone can create an account at {gatekeeper.oidc.admission.issuer}, so anyone could log in. Set roles, "
            "groups or domains in the section [oidc.require] of the identity file, or pass --allow-any-account."
        )
