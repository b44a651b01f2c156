"""Forms that browsers send: read within bounds, and only from pages of this server."""

import asyncio
import contextlib
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.web.logins import Login
from waystation.web.streams import Refused

MAX_BODY = 3_500_000
"""Bytes: an answer of the largest size, with each of its bytes escaped."""
MAX_FIELDS = 2_000
HEARD_S = 10.0
"""How long is waited for the rest of a request that has its answer."""
FORM = "application/x-www-form-urlencoded"


class HeardOut:
    """Answers a request once all of it has come, also when it was refused unread.

    A proxy that is cut off while it sends takes this server for broken, and for a while sends nobody here any more.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope)
        coming = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers

        async def noted() -> Message:
            nonlocal coming
            message = await receive()
            coming = message.get("more_body", False)
            return message

        async def answered(message: Message) -> None:
            left = MAX_BODY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARD_S):
                    while coming and left > 0:
                        left -= len((await noted()).get("body", b""))
            await send(message)

        await self._app(scope, noted, answered)


class Posted:
    """The fields of one form."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs

    def one(self, name: str) -> str:
        """Return the last value of a field, empty when it was not sent."""
        return next((value for key, value in reversed(self._pairs) if key == name), "")

    def text(self, name: str) -> str:
        """Return what was typed, with its lines ended as everywhere else than in forms."""
        return self.one(name).replace("\r\n", "\n")

    def all(self, name: str) -> list[str]:
        """Return every value of a field, each once, in the order of the page."""
        return list(dict.fromkeys(value for key, value in self._pairs if key == name))

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self._pairs)


async def posted(request: Request, login: Login) -> Posted:
    """Return the form that was sent.

    Raises:
        Refused: It is none, is too large, or is not from one of this login's pages.
    """
    form = Posted(await pairs_of(request))
    if not (login.browser and login.owns(form.one("csrf"))):
        text = "This form is not from a page that you opened since you logged in. Open it again, and send it then."
        raise Refused(HTTPStatus.FORBIDDEN, "ForeignForm", text)
    return form


async def pairs_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form, whoever sent it.

    Raises:
        Refused: It is none, or is too large.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise too_large()
    try:
        return parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "InvalidRequest", "This is not a form as browsers send it.") from None


def check_origin(headers: Headers, place: str = "") -> None:
    """Look whether a request that may change something comes from a page of this server, as far as the browser says.

    Args:
        headers: Of the request.
        place: Host and port of the address under which people reach the server, when that is known: a proxy may leave
            the port out of what it passes on.

    Raises:
        Refused: It comes from elsewhere, or is no form.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    elsewhere = site is not None and site != "same-origin"
    # Not the scheme: a proxy that adds TLS speaks without it to this server.
    own = {place.lower(), headers.get("host", "").lower()} - {""}
    if elsewhere or (origin is not None and urlsplit(origin).netloc.lower() not in own):
        text = "This form was sent from a page of another site. Nothing was done; use the pages of this server."
        raise Refused(HTTPStatus.FORBIDDEN, "ForeignForm", text)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "InvalidRequest", f"Only forms are taken, as {FORM}.")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY:
        raise too_large()


def too_large() -> Refused:
    """Return the refusal of a form over its bound."""
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", f"At most {MAX_BODY:,} bytes are taken.")
