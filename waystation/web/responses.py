"""What requests are answered with: pages from templates, and refusals."""

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Scope
from temporalio.service import RPCError, RPCStatusCode

from waystation.core import (
    AnswerRefused,
    AnswerUnconfirmed,
    AuthorizationFailed,
    IdentityUnavailable,
    InvalidAnswer,
    NotAllowed,
    StoreFailed,
)
from waystation.presentation import html, terminal, words

_TEMPLATES = html.environment(Path(__file__).parent / "templates", segment=lambda id: quote(id, safe=""))
_TEMPLATES.globals |= {"until": terminal.until, "who": words.who}


class Refused(Exception):
    """A request that is not served; the response is JSON, or a page."""

    def __init__(self, status: HTTPStatus, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.kind, self.message = status, kind, message
        self.headers = headers or ({"Retry-After": "5"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {})
        super().__init__(message)


STATUSES: Mapping[type[Exception], HTTPStatus] = {
    AnswerUnconfirmed: HTTPStatus.ACCEPTED,
    AuthorizationFailed: HTTPStatus.FORBIDDEN,
    NotAllowed: HTTPStatus.FORBIDDEN,
    InvalidAnswer: HTTPStatus.UNPROCESSABLE_ENTITY,
    AnswerRefused: HTTPStatus.CONFLICT,
    IdentityUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreFailed: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Of errors; the first class that fits counts."""


def status_of(error: Exception) -> HTTPStatus:
    """Return the status of a response for an error."""
    statuses = (status for kind, status in STATUSES.items() if isinstance(error, kind))
    return next(statuses, HTTPStatus.INTERNAL_SERVER_ERROR)


def refused(error: Exception) -> Refused:
    """Return the refusal of a request that an error has ended."""
    match error:
        case Refused():
            return error
        case HTTPException():
            text = f"{error.detail}. In a path the id of an invocation is one segment: `/` is written %2F."
            return Refused(HTTPStatus(error.status_code), "InvalidRequest", text)
        case RPCError():
            name = error.status.name
            text = f"The Temporal server does not answer ({name}). What waits there goes on waiting; try again later."
            if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
                text = f"The Temporal server does not let this server in ({name}); whoever runs it has to see to that."
            return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "NoServer", text)
        case _:
            return Refused(status_of(error), type(error).__name__, str(error))


def page(name: str, *, code: HTTPStatus = HTTPStatus.OK, login: object = None, **values: object) -> HTMLResponse:
    """Return a page made from a template; `login` is who reads it."""
    return HTMLResponse(_TEMPLATES.get_template(name).render(login=login, **values), code)


def refusal(scope: Scope, refused: Refused) -> Response:
    """Return a refusal as its reader wants it: a page, or JSON."""
    if not wants_page(scope):
        error = {"type": refused.kind, "message": refused.message}
        return JSONResponse({"error": error}, refused.status, refused.headers)
    login = scope.get("state", {}).get("login")
    response = page("problem.html", code=refused.status, login=login, status=refused.status, message=refused.message)
    response.headers.update(refused.headers)
    return response


def wants_page(scope: Scope) -> bool:
    """Whether a request comes from a browser that shows pages."""
    return "text/html" in Headers(scope=scope).get("accept", "")
