"""The ways to log in to the web application, and to log out.

People log in with the link that the server prints, through an OpenID provider, or with a link to one call. Programs
send a token: the one of this server, or an access token of the provider. A cookie contains only a random ID; the login
that it identifies stays in this process's memory.
"""

import hmac
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Scope

from waystation.approvers import ROLES, Gatekeeper
from waystation.configuration import login_name
from waystation.core.approval import Verified
from waystation.core.errors import AuthorizationFailed, IdentityUnavailable, NotAllowed
from waystation.web.exposure import check_token
from waystation.web.forms import parse_form, read_form
from waystation.web.http_responses import RequestRefused, accepts_html, format_refusal, redirect, render_page
from waystation.web.limits import Limits
from waystation.web.logins import Login, make_login_cache
from waystation.web.paths import CALLBACK, CALLS, LOGIN, RESOURCE_METADATA, format_call_path, root, sanitize_next

if TYPE_CHECKING:
    from waystation.approvers.identity import BearerTokens, OidcLogin

LOGIN_S = 8 * 3600.0
"""How long a login through the provider lasts. After that, the provider must confirm the identity again. A login from a
link to a call lasts at most as long."""
STATE_S = 600
"""How long a person may take to log in at the provider."""
HOST_S = 300.0
"""How long an event stream lasts for a person that the host has logged in. Its browser then connects again, so that the
host is asked whether the person is still logged in."""


@dataclass(frozen=True, slots=True)
class HostPerson:
    """A person that the application around this one, the host, has logged in.

    Set `verified` only if the host has proved who the person is, not for a name that a browser or another service sent.
    Then the gateway in the identity file signs the person's answers, and workers count them as those of `subject`, with
    the `roles` that policies name. With `tenant`, the person sees only that tenant. Without `verified`, answers have
    only the name, and do not satisfy a policy that requires verified identities.
    """

    name: str
    verified: Verified | None = None
    roles: frozenset[str] = frozenset()
    """The roles in this application. Without any, people see their own invocations and the calls that they may
    answer."""


FindPerson = Callable[[Request], Awaitable[HostPerson | None] | HostPerson | None]
"""Returns the person that the host has logged in, or None. It is called for each request, except those with an access
token, those of other sites, and those for public files."""


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
        find_person: FindPerson | None = None,
        login_url: str = "",
        logout_url: str = "",
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
                the access token have all roles, and answer calls that do not require a verified identity. Otherwise,
                they have only the role `viewer`.
            find_person: Returns the person that the host has logged in. With it, nobody logs in here.
            login_url: Where the host logs people in. The parameter `next` is added.
            logout_url: Where the host logs people out.

        Raises:
            NotSafeToServe: The token is too short.
        """
        if token is not None:
            check_token(token)
        limits = limits or Limits()
        self.url, self.gatekeeper = url, gatekeeper or Gatekeeper(interface="web")
        self._token, self._cookie, self._announce = token, cookie, announce
        self._person, self._secure = person or login_name() or "", secure
        self._logins, self._visits = make_login_cache(limits.logins), make_login_cache(limits.visits)
        self._hosted, self.find_person = make_login_cache(limits.visits), find_person
        self._login_url, self._logout_url = login_url, logout_url
        self.root = urlsplit(url or "").path.rstrip("/")
        is_trusted = is_local and self.gatekeeper.oidc is None
        name, roles = (self._person, ROLES) if is_trusted else ("program", frozenset({"viewer"}))
        # Several people may know the token, so no answer that it sends proves who sent it.
        self._program = Login(name, browser=False, roles=roles, vouched=False, answers=is_trusted)
        self._link_token = ""
        if find_person is None:
            self._offer()

    async def find_login(self, scope: Scope, *, with_cookies: bool = True, with_tokens: bool = True) -> Login | None:
        """Return the login that a request belongs to, or None if the request has no valid cookie or token.

        A login from a link to a call is valid only for that call's page. Pages of other origins may not use cookies,
        and public routes do not look at access tokens.

        Raises:
            RequestRefused: The request has an access token that is not valid or not sufficient for this server.
        """
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if self._token is not None and is_equal(token.strip(), self._token):
                return self._program
            if self.gatekeeper.tokens is not None and with_tokens:
                return await self._find_bearer(self.gatekeeper.tokens, token.strip())
        if not with_cookies:
            return None
        if self.find_person is not None and with_tokens and (person := await self._ask_host(Request(scope))):
            return person
        cookies = Request(scope).cookies
        if (login := self._logins.get(cookies.get(self._cookie, ""))) is not None:
            return login
        visit = self._visits.get(cookies.get(f"{self._cookie}-link", ""))
        return visit if visit is not None and scope["path"] == format_call_path(visit.only) else None

    async def _ask_host(self, request: Request) -> Login | None:
        """Return the login of the person that the host has logged in. All of the person's requests share its forms."""
        assert self.find_person is not None
        found = self.find_person(request)
        person = await found if inspect.isawaitable(found) else found
        if person is None:
            return None
        key = (person.verified.issuer, person.verified.subject) if person.verified else person.name
        base = self._hosted.setdefault(repr(key), Login(person.name))
        return replace(
            base,
            name=person.name,
            verified=person.verified,
            roles=frozenset(person.roles),
            until=time.time() + HOST_S,
            vouched=False,  # the gateway signs only for people that the host has verified
            logout_url=self._logout_url,
        )

    async def _find_bearer(self, tokens: "BearerTokens", token: str) -> Login:
        from waystation.approvers.identity import ScopesMissing

        try:
            found = await tokens.identify(token)
        except IdentityUnavailable as error:
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "IdentityUnavailable", str(error)) from None
        except AuthorizationFailed as error:
            raise RequestRefused(HTTPStatus.FORBIDDEN, "NotAllowed", str(error)) from None
        except ScopesMissing as error:
            details = {"error": "insufficient_scope", "scope": " ".join(tokens.scopes)}
            headers = self._challenge(**details)
            raise RequestRefused(HTTPStatus.FORBIDDEN, "ScopesMissing", str(error), headers) from None
        except NotAllowed as error:
            headers = self._challenge(error="invalid_token")
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", str(error), headers) from None
        return Login(
            found.name or found.who.subject,
            verified=found.who,
            until=found.until,
            browser=False,
            roles=found.roles,
            proof=None if self.gatekeeper.gateway else token,
            is_machine=found.is_machine,
            is_admitted=found.is_admitted,
        )

    def _challenge(self, **details: str) -> dict[str, str]:
        """Return the header that tells a program how to get a token (RFC 6750 and RFC 9728)."""
        if self.gatekeeper.tokens is not None and (path := find_metadata_path(self.gatekeeper)):
            parts = urlsplit(self.gatekeeper.tokens.resource)
            details = {**details, "resource_metadata": f"{parts.scheme}://{parts.netloc}{root()}{path}"}
        listed = ", ".join(f'{name}="{value}"' for name, value in details.items())
        return {"WWW-Authenticate": f"Bearer {listed}".rstrip()}

    async def describe_resource(self, request: Request) -> Response:
        """Return the metadata of this server as a protected resource, which names the provider (RFC 9728)."""
        tokens = self.gatekeeper.tokens
        assert tokens is not None
        metadata = {
            "resource": tokens.resource,
            "authorization_servers": [tokens.provider],
            "bearer_methods_supported": ["header"],
            "resource_name": "Waystation",
        }
        return JSONResponse(metadata | ({"scopes_supported": [*tokens.scopes]} if tokens.scopes else {}))

    def refuse_stranger(self, scope: Scope) -> Response:
        """Return the response for a request without a login: a redirect to the provider, a page, or an error."""
        in_browser, is_call = accepts_html(scope), scope["path"].startswith(CALLS)
        by_person = scope["method"] == "GET" and in_browser
        target = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        remedy, place = "open the link that the server printed when it started", ""
        if self.find_person is not None:
            remedy = "open the application that this server belongs to"
            if self._login_url:
                mark, next = "&" if "?" in self._login_url else "?", quote(f"{root()}{target}", safe="")
                place = f"{self._login_url}{mark}next={next}"
        elif self.gatekeeper.oidc is not None:
            remedy = "open a page of this server in a browser"
            place = f"{root()}{LOGIN}?next={quote(target, safe='')}"
        if by_person and is_call and self.gatekeeper.links is not None:
            # The URL's fragment may contain a link token, which only a script on this page can read.
            return render_page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem="")
        if by_person and place:
            return RedirectResponse(place, HTTPStatus.SEE_OTHER)
        invalid = "The token of this request is not valid. " if "authorization" in Request(scope).headers else ""
        text = (
            f"{invalid}Log in first: {remedy}. Programs send `Authorization: Bearer TOKEN` with the token in "
            f"WAYSTATION_WEB_TOKEN{' or an access token of the provider' if self.gatekeeper.tokens else ''}."
        )
        if scope["method"] == "POST":
            problem = "Nothing was sent: this browser is not logged in, or its login has ended."
            if in_browser and place and is_call:
                return render_page("link.html", code=HTTPStatus.UNAUTHORIZED, place=place, problem=problem)
            text = f"{problem} {text}"
        return format_refusal(scope, RequestRefused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", text, self._challenge()))

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
            raise RequestRefused(HTTPStatus.FORBIDDEN, "NotAllowed", text)
        self._offer()
        return self._enter(request, Login(self._person, roles=self.gatekeeper.roles_of(self._person)))

    async def _go_to_provider(self, request: Request, oidc: "OidcLogin") -> Response:
        here = self.url or f"{request.url.scheme}://{request.headers.get('host', '')}{root()}"
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
        login = Login(
            result.name or result.who.subject,
            verified=result.who,
            until=until,
            roles=result.roles,
            claims=result.claims,
        )
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
        response.delete_cookie(self._cookie, path=root() or "/", httponly=True, samesite="lax")
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
        response = redirect(next)
        self._set_cookie(request, response, name, id, path)
        return response

    def _set_cookie(
        self, request: Request, response: Response, name: str, value: str, path: str, age_s: int | None = None
    ) -> None:
        secure = self._secure or request.url.scheme == "https"
        # Do not use `strict`: requests from links in emails would lack the cookie. GET requests change nothing anyway.
        place = f"{root()}{path}" if path != "/" else root() or path
        response.set_cookie(name, value, age_s, path=place, secure=secure, httponly=True, samesite="lax")

    def _offer(self) -> None:
        self._link_token = secrets.token_urlsafe(32)
        self._announce(f"{LOGIN}?token={self._link_token}")


def find_metadata_path(gatekeeper: Gatekeeper) -> str | None:
    """Return the path of the metadata for access tokens, or None if there are none or their audience is not a URL."""
    parts = urlsplit(gatekeeper.tokens.resource if gatekeeper.tokens else "")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return None
    return f"{RESOURCE_METADATA}{parts.path.rstrip('/')}"


def is_equal(value: str, expected: str) -> bool:
    """Compare two strings in constant time."""
    return hmac.compare_digest(value.encode(errors="replace"), expected.encode())
