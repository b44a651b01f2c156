"""What requests are answered with: pages from templates, and refusals."""

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Scope
from temporalio.service import RPCError, RPCStatusCode

import waystation.presentation
from waystation.core.errors import StoreFailed
from waystation.presentation import text_safety
from waystation.presentation.html_time import moment, zone

_FOLDERS = (Path(__file__).parent, Path(waystation.presentation.__file__).parent)
_TEMPLATES = Environment(
    loader=FileSystemLoader([folder / "templates" for folder in _FOLDERS]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)
_TEMPLATES.filters |= {
    "segment": lambda id: quote(id, safe=""),
    "line": text_safety.line,
    "moment": moment,
    "duration": lambda length: text_safety.duration(length.total_seconds()),
}
_TEMPLATES.globals["zone"] = zone


class Refused(Exception):
    """A request that is not served; the response is JSON, or a page."""

    def __init__(self, status: HTTPStatus, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.kind, self.message = status, kind, message
        busy = {"Retry-After": "5"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        self.headers = headers or busy
        super().__init__(message)


def unreachable(error: RPCError | StoreFailed) -> Refused:
    """Return the refusal for data that cannot be read now."""
    if isinstance(error, StoreFailed):
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "StoreFailed", str(error))
    name = error.status.name
    text = f"The Temporal server does not answer ({name}). What waits there goes on waiting; try again later."
    if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        text = f"The Temporal server does not let this server in ({name}); whoever runs it has to see to that."
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "NoServer", text)


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
