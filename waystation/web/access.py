"""Who gets in: the guard before the application, logins, and the ways to log in.

People log in by the link that the server prints, at a provider, or by a link to one call; programs send a token. A
cookie holds nothing but a random id; all that it stands for stays in memory here. Everything but the login and the
static files needs a login. Nothing here protects the traffic itself: on a network, a proxy has to add TLS.
"""

import asyncio
import contextlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
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
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.configuration import login_name
from waystation.core import ROLE, NotAllowed, Signs, Verified, WaystationError
from waystation.presentation import text_safety
from waystation.web.forms import parse_form, read_form
from waystation.web.limits import Limits
from waystation.web.responses import Refused, page, refusal, wants_page

if TYPE_CHECKING:
    from waystation.identity import Gateway, Links, OidcLogin, Sealer

CALLS = "/approvals/"
LOGIN_S = 8 * 3600.0
"""How long a person stays logged in; the provider is asked again afterwards."""
STATE_S = 600
MAX_FORMS = 500
"""Forms of a login that may still be sent, or were sent; the oldest are forgotten first."""
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


@dataclass(eq=False)
class FormUse:
    """What became of a form that may be sent once."""

    taken: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Login:
    """A person at a browser, or a program with the token."""

    person: str
    """Recorded with answers as a claim, unless a gateway vouches for it."""
    verified: Verified | None = None
    """Who an identity provider says it is."""
    until: float = float("inf")
    """Seconds since 1970."""
    browser: bool = True
    """Whether it may send forms."""
    only: str = ""
    """The one call that it sees, when it came by a link."""
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """In each of its forms, and in nobody else's."""
    _seen: FIFOCache[str, bool] = field(default_factory=lambda: FIFOCache(MAX_FORMS), repr=False)
    """Calls of which it is recorded that this person looked at them."""
    _forms: FIFOCache[tuple[str, str], FormUse] = field(default_factory=lambda: FIFOCache(MAX_FORMS), repr=False)

    @property
    def subject(self) -> str:
        """The name that is recorded with answers."""
        return self.verified.subject if self.verified else self.person

    @property
    def names(self) -> tuple[str, ...]:
        """What policies and claims may call this person, roles included."""
        if self.verified is None:
            return (self.person,)
        return self.verified.subject, *(f"{ROLE}{role}" for role in self.verified.roles)

    def offer(self, about: str) -> str:
        """Return the nonce that makes one form usable once."""
        nonce = secrets.token_urlsafe(18)
        self._forms[about, nonce] = FormUse()
        return nonce

    def form_use(self, nonce: str, about: str) -> FormUse | None:
        """Return the form with that nonce; None when it was never offered for this, or is forgotten."""
        return self._forms.get((about, nonce))

    def sees_first(self, approval_id: str) -> bool:
        """Return whether this person is new to a call, and remember that the person has seen it."""
        is_first = approval_id not in self._seen
        self._seen[approval_id] = True
        return is_first


@dataclass(frozen=True, kw_only=True)
class Gatekeeper:
    """The parts of an identity configuration that a web server uses; each may be missing."""

    gateway: "Gateway | None" = None
    sealer: "Sealer | None" = None
    oidc: "OidcLogin | None" = None
    links: "Links | None" = None

    @classmethod
    def of(cls, file: str | Path, namespace: str) -> "Gatekeeper":
        """Return what a configuration allows.

        Raises:
            InvalidConfiguration: It cannot be used, or has only half of what it takes to vouch for people.
        """
        from waystation.identity import Configuration, Gateway, Links, OidcLogin, Sealer

        configuration = Configuration.read(file)
        envelope = configuration.envelope
        if configuration.gateway is None and (configuration.links is None or (envelope and envelope.private_key)):
            raise configuration.lacks("gateway", "the file says nothing for `waystation web`; gateway.toml does")
        if configuration.oidc is not None and configuration.gateway is None:
            raise configuration.lacks("gateway", "its key tells the workers who has logged in")
        return cls(
            gateway=Gateway.of(configuration) if configuration.gateway else None,
            sealer=Sealer.of(configuration) if configuration.gateway else None,
            oidc=OidcLogin.of(configuration) if configuration.oidc else None,
            links=Links.of(configuration, namespace=namespace) if configuration.links else None,
        )

    def known_as(self, login: Login) -> Verified | None:
        """Return as whom the workers will know a person; None when they have only the person's own word."""
        return None if self.gateway is None else login.verified or Verified(subject=login.person)

    def token_of(self, login: Login) -> Signs | None:
        """Return what makes the token of an answer: signed for a person, and then encrypted for the workers."""
        who = self.known_as(login)
        if who is None or self.gateway is None or self.sealer is None:
            return None
        signer, sealer = self.gateway.signer(who.subject, who.roles), self.sealer

        def make(*, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
            place = {"namespace": namespace, "approval_id": approval_id}
            return sealer.seal(signer(**place, answer=answer), **place, answer=answer)

        return make


class Access:
    """The tokens of one web server, who is logged in, and the pages by which people log in."""

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
    ) -> None:
        """Begin with a link for the first browser.

        Args:
            announce: Receives each new login path, for the person who runs the server to open.
            token: What programs send as `Authorization: Bearer …`; without it none gets in.
            cookie: Name of the cookie. Servers on several ports of one machine share their cookies, so each has a name.
            person: Who opens the link, as recorded with answers; by default the user of the operating system.
            secure: Whether people reach it by https, which a proxy adds.
            url: Address under which people reach it, when that is not the one at which it listens.
            gatekeeper: Knows people; without it the name of a login is a mere claim.
            limits: How many may be logged in.

        Raises:
            NotSafeToServe: The token can be guessed.
        """
        if token is not None and len(token) < MIN_TOKEN_CHARS:
            raise NotSafeToServe(
                f"The token has {len(token)} characters; give one of at least {MIN_TOKEN_CHARS}, such as from "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
            )
        limits = limits or Limits()
        self.url, self.gatekeeper = url, gatekeeper or Gatekeeper()
        self._token, self._cookie, self._announce = token, cookie, announce
        self._person, self._secure = person or login_name() or "", secure
        self._logins, self._visits = login_cache(limits.logins), login_cache(limits.visits)
        self._link_token = ""
        self._offer()

    def routes(self) -> list[Route]:
        """Return the pages by which people log in and out."""
        routes = [Route(LOGIN, self._log_in), Route("/logout", self._log_out, methods=["POST"])]
        if self.gatekeeper.oidc is not None:
            routes.append(Route(CALLBACK, self._return_from_provider))
        if self.gatekeeper.links is not None:
            routes.append(Route(LINK, self._open_link, methods=["POST"]))
        return routes

    def login_of(self, scope: Scope) -> Login | None:
        """Return who sends a request, None for a stranger."""
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if self._token is not None and kind.lower() == "bearer" and same(given.strip(), self._token):
            return Login("program", browser=False)
        cookies = Request(scope).cookies
        if (login := self._logins.get(cookies.get(self._cookie, ""))) is not None:
            return login
        visit = self._visits.get(cookies.get(f"{self._cookie}-link", ""))
        return visit if visit is not None and scope["path"] == call_path(visit.only) else None

    def stranger(self, scope: Scope) -> Response:
        """Return what a request gets that comes from nobody who is logged in."""
        in_browser, is_call = wants_page(scope), scope["path"].startswith(CALLS)
        by_person = scope["method"] == "GET" and in_browser
        wanted = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        way, place = "open the link that was printed where it was started", ""
        if self.gatekeeper.oidc is not None:
            way, place = "open a page of this server in a browser", f"{LOGIN}?next={quote(wanted, safe='')}"
        if by_person and is_call and self.gatekeeper.links is not None:
            # Perhaps it comes by a link: what proves that is where only a script can read it.
            return page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem="")
        if by_person and place:
            return RedirectResponse(place, HTTPStatus.SEE_OTHER)
        text = (
            f"Log in first: {way}; programs send `Authorization: Bearer TOKEN`, with the token in WAYSTATION_WEB_TOKEN."
        )
        if scope["method"] == "POST":
            nothing = "Nothing was sent: this browser is not logged in, or not any more."
            if in_browser and place and is_call:
                return page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem=nothing)
            text = f"{nothing} {text}"
        return refusal(scope, Refused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", text, {"WWW-Authenticate": "Bearer"}))

    async def _log_in(self, request: Request) -> Response:
        """Send a browser to the provider, or exchange the token of a printed link for a cookie.

        The link is then used up, and another one is announced.
        """
        if request.method != "GET":  # of a preview, which must not use it up
            return Response("", HTTPStatus.METHOD_NOT_ALLOWED)
        token = request.query_params.get("token")
        if token is None and self.gatekeeper.oidc is not None:
            return await self._go_to_provider(request, self.gatekeeper.oidc)
        if token is None or not same(token, self._link_token):
            used = "This login link was used before, or is an older one. The newest is where the server was started."
            text = "Open the link that was printed where this server was started, to log in." if token is None else used
            raise Refused(HTTPStatus.FORBIDDEN, "NotAllowed", text)
        self._offer()
        return self._enter(request, Login(self._person))

    async def _go_to_provider(self, request: Request, oidc: "OidcLogin") -> Response:
        here = self.url or f"{request.url.scheme}://{request.headers.get('host', '')}"
        next = own_path(request.query_params.get("next", ""))
        address, state = await oidc.begin(f"{here.rstrip('/')}{CALLBACK}", next)
        response = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        # It binds the login to the browser that began it.
        self._set_cookie(request, response, f"{self._cookie}-state", state, CALLBACK, STATE_S)
        return response

    async def _return_from_provider(self, request: Request) -> Response:
        assert self.gatekeeper.oidc is not None
        state = request.cookies.get(f"{self._cookie}-state")
        found = await self.gatekeeper.oidc.finish(dict(request.query_params), state)
        login = Login(found.name or found.who.subject, verified=found.who, until=time.time() + LOGIN_S)
        return self._enter(request, login, found.next)

    async def _open_link(self, request: Request) -> Response:
        """Let a browser see the call that a link is for, and nothing else. That changes nothing about the call.

        The token of a link is in the fragment of its address, which no browser sends and no log has. A script on the
        page that strangers get sends it on, in a body.
        """
        assert self.gatekeeper.links is not None
        form = parse_form(await request.body())
        try:
            link = self.gatekeeper.links.read(form.get("link", ""))
        except NotAllowed as refused:
            if place := form.get("place"):  # the call stays a login away: links expire before calls do
                text = str(refused)
                return page("link.html", code=HTTPStatus.FORBIDDEN, place=own_path(place), problem=text)
            raise
        decides = self.gatekeeper.links.decide and link.person is not None
        until = min(link.until, time.time() + LOGIN_S)
        return self._enter(request, Login(link.person or "", until=until, browser=decides, only=link.approval_id))

    async def _log_out(self, request: Request) -> Response:
        await read_form(request)
        self._logins.pop(request.cookies.get(self._cookie, ""), None)
        response = page("left.html", provider=self.gatekeeper.oidc is not None)
        response.delete_cookie(self._cookie, path="/", httponly=True, samesite="lax")
        return response

    def _enter(self, request: Request, login: Login, next: str = "/") -> Response:
        """Log a browser in and send it on; by a link, to the one call that it opens."""
        name, logins, path = self._cookie, self._logins, "/"
        if login.only:
            # Several calls may be open at a time, each by its link: what is typed into one page outlives the next.
            name, logins, path = f"{self._cookie}-link", self._visits, call_path(login.only)
            next = path
        id = secrets.token_urlsafe(32)
        logins[id] = login
        response = RedirectResponse(next, HTTPStatus.SEE_OTHER)
        self._set_cookie(request, response, name, id, path)
        return response

    def _set_cookie(
        self, request: Request, response: Response, name: str, value: str, path: str, age_s: int | None = None
    ) -> None:
        secure = self._secure or request.url.scheme == "https"
        # Not `strict`: whoever comes by a link in a mail would seem to be a stranger. Nothing changes by following one.
        response.set_cookie(name, value, age_s, path=path, secure=secure, httponly=True, samesite="lax")

    def _offer(self) -> None:
        self._link_token = secrets.token_urlsafe(32)
        self._announce(f"{LOGIN}?token={self._link_token}")


def login_cache(most: int, clock: Callable[[], float] = time.time) -> TLRUCache[str, Login]:
    """Return a place for logins, by the ids in their cookies; each ends at its time."""
    return TLRUCache(most, lambda _id, login, _now: login.until, timer=clock)


def call_path(approval_id: str) -> str:
    """Return the path of the page of a call."""
    return f"{CALLS}{quote(approval_id, safe='')}"


def own_path(path: str) -> str:
    """Return where a browser goes after the login: a page of this server, whatever it was asked for."""
    # Browsers read a backslash as a slash, and pass over tabs and line breaks.
    if not (path.startswith("/") and path.isascii() and path.isprintable()) or "\\" in path:
        return "/"
    parts = urlsplit(path)
    return path if not parts.scheme and not parts.netloc and not path.startswith("//") else "/"


def same(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


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

    def __init__(self, app: ASGIApp, access: Access, *, names: Sequence[str] = (), limits: Limits) -> None:
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
