"""Templates, and the page that says what went wrong."""

from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

HERE = Path(__file__).parent
_TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_TEMPLATES.filters["segment"] = lambda id: quote(id, safe="")


def page(name: str, *, code: HTTPStatus = HTTPStatus.OK, **given: object) -> HTMLResponse:
    """Return a page made from a template."""
    return HTMLResponse(_TEMPLATES.get_template(name).render(**given), code)


def problem(status: HTTPStatus, message: str) -> HTMLResponse:
    """Return the page that says what went wrong."""
    return page("problem.html", code=status, status=status, message=message)
