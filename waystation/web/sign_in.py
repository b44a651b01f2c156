"""People who log in at an identity provider, and people who come by a link to one call."""

import time
from collections import OrderedDict
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from waystation.core.errors import AuthorizationFailed, IdentityUnavailable, NotAllowed
from waystation.identity import Links
from waystation.identity.oidc import OidcLogin
from waystation.web.logins import MAX_LOGINS, Login
from waystation.web.posted import Posted, pairs_of
from waystation.web.rendering import page
from waystation.web.security import CALLBACK, Access
from waystation.web.streams import Refused

LOGIN_S = 8 * 3600.0
"""How long somebody stays logged in; the provider is asked again afterwards."""
STATE_S = 600


class SignIn:
    """Logins at a provider."""

    def __init__(self, oidc: OidcLogin, access: Access, *, url: str | None = None) -> None:
        """`url` is the address under which people reach the server; by default the one they have used."""
        self._oidc, self._access, self._url = oidc, access, url
        self._next: OrderedDict[str, str] = OrderedDict()

    async def begin(self, request: Request) -> Response:
        """Send a browser to the provider."""
        if request.method != "GET":
            return Response("", HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            address, state = await self._oidc.begin(self._address(request))
        except IdentityUnavailable as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "IdentityUnavailable", str(error)) from None
        self._next[state] = own_path(request.query_params.get("next", ""))
        while len(self._next) > MAX_LOGINS * 10:
            self._next.popitem(last=False)
        response = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        self._access.keep_state(request, response, state, STATE_S)
        return response

    async def finish(self, request: Request) -> Response:
        """Let in whoever comes back from the provider."""
        state = self._access.state(request)
        try:
            found = await self._oidc.finish(dict(request.query_params), state)
        except AuthorizationFailed as error:
            raise Refused(HTTPStatus.FORBIDDEN, "AuthorizationFailed", str(error)) from None
        except IdentityUnavailable as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "IdentityUnavailable", str(error)) from None
        login = Login(found.name or found.who.subject, verified=found.who, until=time.time() + LOGIN_S)
        return self._access.enter(request, login, self._next.pop(state or "", "/"))

    def _address(self, request: Request) -> str:
        here = self._url or f"{request.url.scheme}://{request.headers.get('host', '')}"
        return f"{here.rstrip('/')}{CALLBACK}"


class LinkPages:
    """Calls that are opened by a link. It shows; whether it lets its person answer is for the configuration to say.

    The token of a link is in the fragment of its address, which no browser sends and no log has. A script on the page
    that strangers get sends it on, in a body.
    """

    def __init__(self, links: Links, access: Access) -> None:
        self._links, self._access = links, access

    async def open(self, request: Request) -> Response:
        """Let a browser see the call that a link is for, and nothing else. That changes nothing about the call."""
        form = Posted(await pairs_of(request))
        try:
            link = self._links.read(form.one("link"))
        except NotAllowed as refused:
            if place := form.one("place"):  # the call stays a login away: links expire before calls do
                text = str(refused)
                return page("link.html", code=HTTPStatus.FORBIDDEN, place=own_path(place), problem=text)
            raise Refused(HTTPStatus.FORBIDDEN, "NotAllowed", str(refused)) from None
        decides = self._links.decide and link.person is not None
        until = min(link.until, time.time() + LOGIN_S)
        login = Login(link.person or "", until=until, browser=decides, only=link.approval_id)
        return self._access.enter(request, login)


def own_path(given: str) -> str:
    """Return where a browser goes after the login: a page of this server, whatever it was asked for."""
    # Browsers read a backslash as a slash, and pass over tabs and line breaks.
    if not (given.startswith("/") and given.isascii() and given.isprintable()) or "\\" in given:
        return "/"
    parts = urlsplit(given)
    return given if not parts.scheme and not parts.netloc and not given.startswith("//") else "/"
