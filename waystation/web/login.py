"""Who is logged in, and how people get in: by the link that the server prints, at a provider, or by a link to one call.

Programs send a token instead. A cookie holds nothing but a random id; all that it stands for stays in memory here.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from cachetools import FIFOCache, TLRUCache
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from waystation.configuration import login_name
from waystation.core import ROLE, NotAllowed, Signs, Verified
from waystation.web.forms import parse_form, read_form
from waystation.web.limits import Limits
from waystation.web.responses import Refused, page, refusal, wants_page
from waystation.web.security import CALLBACK, LINK, LOGIN, MIN_TOKEN_CHARS, NotSafeToServe

if TYPE_CHECKING:
    from waystation.identity import Gateway, Links, OidcLogin, Sealer

CALLS = "/approvals/"
LOGIN_S = 8 * 3600.0
"""How long a person stays logged in; the provider is asked again afterwards."""
STATE_S = 600
MAX_FORMS = 500
"""Forms of a login that may still be sent, or were sent; the oldest are forgotten first."""


@dataclass(eq=False)
class FormUse:
    """What became of a form that may be sent once."""

    about: str
    """What it was made for; it is good for nothing else."""
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
    _forms: FIFOCache[str, FormUse] = field(default_factory=lambda: FIFOCache(MAX_FORMS), repr=False)

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
        self._forms[nonce] = FormUse(about)
        return nonce

    def form_use(self, nonce: str, about: str) -> FormUse | None:
        """Return the form with that nonce; None when it was never offered for this, or is forgotten."""
        found = self._forms.get(nonce)
        return found if found is not None and found.about == about else None

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
            text = "This login link was used before, or is an older one. The newest is where the server was started."
            if token is None:
                text = "Open the link that was printed where this server was started, to log in."
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
