"""Templates, and the page that says what went wrong."""

from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

import waystation.presentation
from waystation.presentation import text_safety
from waystation.presentation.html_time import moment, zone
from waystation.web.logins import Login

_FOLDERS = (Path(__file__).parent, Path(waystation.presentation.__file__).parent)
_TEMPLATES = Environment(
    loader=FileSystemLoader([folder / "templates" for folder in _FOLDERS]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)
_TEMPLATES.filters["segment"] = lambda id: quote(id, safe="")
_TEMPLATES.filters["line"] = text_safety.line
_TEMPLATES.filters["moment"] = moment
_TEMPLATES.globals["zone"] = zone
_TEMPLATES.filters["duration"] = lambda given: text_safety.duration(given.total_seconds())


def page(name: str, *, code: HTTPStatus = HTTPStatus.OK, login: Login | None = None, **given: object) -> HTMLResponse:
    """Return a page made from a template; `login` is who reads it."""
    return HTMLResponse(_TEMPLATES.get_template(name).render(login=login, **given), code)


def problem(status: HTTPStatus, message: str, *, login: Login | None = None) -> HTMLResponse:
    """Return the page that says what went wrong."""
    return page("problem.html", code=status, login=login, status=status, message=message)
