"""HTTP responses: pages rendered from templates, and errors as pages or JSON."""

import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import Scope
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.errors import (
    AnswerRefused,
    AnswerUnconfirmed,
    AuthorizationFailed,
    ForeignHistory,
    IdentityUnavailable,
    InvalidAnswer,
    InvalidInput,
    NoPrompt,
    NoSuchEvent,
    NotAllowed,
    NotJson,
    ScopeNameTooLong,
    SessionRefused,
    StoreFailed,
    UnknownAgent,
    UnknownSession,
)
from waystation.presentation import html, words
from waystation.web.paths import API_V1, root
from waystation.web.shared_reads import current_age_s

_TEMPLATES = html.make_environment(Path(__file__).parent / "templates", segment=lambda id: quote(id, safe=""))
_TEMPLATES.globals |= {"now": time.time, "who": words.format_approvers, "hint": words.hint, "age_s": current_age_s}
_TEMPLATES.globals["root"] = root


PROBLEM = "application/problem+json"


class RequestRefused(Exception):
    """The request is refused. Browsers receive an error page, and programs receive JSON."""

    def __init__(
        self, status: HTTPStatus, kind: str, message: str, headers: Mapping[str, str] | None = None, **details: object
    ) -> None:
        self.status, self.kind, self.message, self.details = status, kind, message, details
        self.headers = headers or ({"Retry-After": "5"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {})
        super().__init__(message)


class ProblemDocument(BaseModel):
    """An error of the JSON API, as RFC 9457 defines it."""

    type: str
    """`urn:waystation:error:` and the name of the error. The reference of errors explains most of them."""
    title: str
    status: int
    detail: str


def make_problem(refused: RequestRefused) -> ProblemDocument:
    """Return the document about a refusal."""
    title = re.sub("(?<=[a-z])(?=[A-Z])", " ", refused.kind).capitalize()
    urn = f"urn:waystation:error:{refused.kind}"
    return ProblemDocument(type=urn, title=title, status=refused.status, detail=refused.message)


STATUSES: Mapping[type[Exception], HTTPStatus] = {
    AnswerUnconfirmed: HTTPStatus.ACCEPTED,
    AuthorizationFailed: HTTPStatus.FORBIDDEN,
    NotAllowed: HTTPStatus.FORBIDDEN,
    InvalidAnswer: HTTPStatus.UNPROCESSABLE_ENTITY,
    AnswerRefused: HTTPStatus.CONFLICT,
    UnknownSession: HTTPStatus.NOT_FOUND,
    SessionRefused: HTTPStatus.CONFLICT,
    UnknownAgent: HTTPStatus.UNPROCESSABLE_ENTITY,
    InvalidInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotJson: HTTPStatus.UNPROCESSABLE_ENTITY,
    ScopeNameTooLong: HTTPStatus.UNPROCESSABLE_ENTITY,
    ForeignHistory: HTTPStatus.NOT_FOUND,
    NoPrompt: HTTPStatus.NOT_FOUND,
    NoSuchEvent: HTTPStatus.NOT_FOUND,
    IdentityUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreFailed: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The HTTP status for each error class. The first matching class wins."""


def find_status(error: Exception) -> HTTPStatus:
    """Return the HTTP status for an error. Unknown errors get 500."""
    statuses = (status for kind, status in STATUSES.items() if isinstance(error, kind))
    return next(statuses, HTTPStatus.INTERNAL_SERVER_ERROR)


def to_refused(error: Exception) -> RequestRefused:
    """Convert an error to a refusal with an HTTP status and a human-readable message."""
    match error:
        case RequestRefused():
            return error
        case HTTPException():
            text = f"{error.detail}."
            if error.status_code == HTTPStatus.NOT_FOUND:
                text += (
                    " An invocation ID is a single path segment: write `/` as %2F. Other protocols are "
                    "served only with `waystation web --interface NAME`."
                )
            return RequestRefused(HTTPStatus(error.status_code), "InvalidRequest", text)
        case RPCError():
            name = error.status.name
            text = f"The Temporal server does not answer ({name}). Pending calls stay pending; try again later."
            if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
                text = f"The Temporal server refuses this web server ({name}). Its operator must check its credentials."
            if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
                text = "More is asked of the Temporal server than it may answer. Try again in a few seconds."
            return RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "NoServer", text)
        case _:
            return RequestRefused(find_status(error), type(error).__name__, str(error))


def render_page(name: str, *, code: HTTPStatus = HTTPStatus.OK, login: object = None, **values: object) -> HTMLResponse:
    """Render a template. `login` is the login of the person who reads the page."""
    return HTMLResponse(_TEMPLATES.get_template(name).render(login=login, **values), code)


def redirect(path: str) -> Response:
    """Return a redirect to a page of this application."""
    return RedirectResponse(f"{root()}{path}", HTTPStatus.SEE_OTHER)


def format_refusal(scope: Scope, refused: RequestRefused) -> Response:
    """Return the response for a refusal: a page if the client accepts HTML, or JSON if not."""
    if scope["path"].startswith(f"{API_V1}/"):
        content = {**make_problem(refused).model_dump(), **refused.details}
        return JSONResponse(content, refused.status, refused.headers, PROBLEM)
    if not accepts_html(scope):
        error = {"type": refused.kind, "message": refused.message}
        return JSONResponse({"error": error}, refused.status, refused.headers)
    login = scope.get("state", {}).get("login")
    response = render_page(
        "problem.html", code=refused.status, login=login, status=refused.status, message=refused.message
    )
    response.headers.update(refused.headers)
    return response


def accepts_html(scope: Scope) -> bool:
    """Return whether the client accepts HTML."""
    return "text/html" in Headers(scope=scope).get("accept", "")
