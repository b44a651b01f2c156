"""The browser front end of google-adk, served from the installed package without importing it."""

from collections.abc import Sequence
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from waystation.version import ADK_VERSIONS
from waystation.web.guard import POLICY
from waystation.web.http_responses import RequestRefused, redirect
from waystation.web.paths import root
from waystation.web.route_table import RouteRow

PLACE = "/dev-ui"
FRONT_END_POLICY = (
    # WebAssembly draws graphs. The hash is that of the only inline handler, which loads a style sheet.
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval' 'unsafe-hashes' "
    "'sha256-MhtPZXr7+LpJUY5qtMutB+qWfQtMaPccfe7QXtCcEYc='; "
    # Its fonts and icons are not in the package.
    "style-src 'self' 'unsafe-inline'; font-src 'self' data: https://fonts.gstatic.com; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'none'; base-uri 'self'; frame-ancestors 'none'"
)
"""The policy of the front end, which needs more than other pages. It sends nothing to other sites."""


class FrontEndFiles(StaticFiles):
    """The files of the front end, with its policy."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file."""
        response = await super().get_response(path, scope)
        response.headers[POLICY] = FRONT_END_POLICY
        return response


def find_front_end() -> Path | None:
    """Return the folder with the files of the front end, or None if google-adk is not installed."""
    try:
        spec = find_spec("google.adk")
    except ModuleNotFoundError:  # there is no package `google`
        return None
    folders = [Path(place, "cli", "browser") for place in spec.submodule_search_locations or ()] if spec else []
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


def make_front_end_rows() -> Sequence[RouteRow]:
    """Return the rows of the front end, or of a page that says how to install it."""
    if (folder := find_front_end()) is None:
        return [RouteRow("GET", f"{PLACE}{end}", explain_missing, "login") for end in ("", "/")]
    return [
        RouteRow("GET", PLACE, open_front_end, "login"),
        RouteRow("GET", f"{PLACE}/assets/config/runtime-config.json", configure, "login"),
        RouteRow("GET", PLACE, FrontEndFiles(directory=folder, html=True), "login"),
    ]


async def open_front_end(_request: Request) -> Response:
    """Go to the page of the front end, whose links are relative."""
    return redirect(f"{PLACE}/")


async def configure(_request: Request) -> Response:
    """Return the front end's settings: where the routes are, and that it does not report how it is used."""
    return JSONResponse({"backendUrl": root(), "telemetry": False})


async def explain_missing(_request: Request) -> Any:
    """Refuse a request for the front end.

    Raises:
        RequestRefused: Always.
    """
    text = (
        f"The browser front end is part of google-adk{ADK_VERSIONS}, which is not installed in the environment of this "
        "server. Install it with: pip install 'waystation[web,adk]'. ADK's other routes do not need it."
    )
    raise RequestRefused(HTTPStatus.NOT_FOUND, "NotInstalled", text)
