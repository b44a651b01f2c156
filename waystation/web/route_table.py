"""All routes of the web application, each with the role that it requires.

The application is built from this table, so a route cannot exist without a requirement.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from waystation.web.access import CALLBACK, LINK, LOGIN, LOGOUT, STATIC, Access
from waystation.web.approval_pages import ApprovalPages
from waystation.web.http_responses import Refused
from waystation.web.invocation_pages import InvocationPages
from waystation.web.json_api import JsonApi
from waystation.web.permissions import ROLES, Role, check_role

Handler = Callable[[Request], Awaitable[Response]]
Check = Callable[[Request], Awaitable[None]]
Requirement = Literal["public", "login"] | Role
"""`public` admits everybody. `login` admits people who are logged in; the handler shows only what they may see."""
REQUIREMENTS = {"public", "login", *ROLES}
FILES: list[str | tuple[str, str]] = [("waystation.web", "static"), ("waystation.presentation", "static")]


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A route and its requirement."""

    method: Literal["GET", "POST"]
    path: str
    handler: Handler | StaticFiles
    role: Requirement
    check: Check | None = None
    """Checks access to the object in the path instead of `role`: even without the role, people may see what they
    requested, and answer calls that name them. None for a route without such an object.
    """


def make_table(access: Access, invocations: InvocationPages, approvals: ApprovalPages, api: JsonApi) -> list[RouteRow]:
    """Return the table. If the paths of several rows match a request, the first of these rows counts."""
    see, see_call, answer = invocations.check_visible, approvals.check_visible, approvals.check_answerable
    rows = [
        RouteRow("GET", "/", invocations.index, "login"),
        RouteRow("GET", "/invocations/{id}", invocations.invocation, "viewer", see),
        RouteRow("GET", "/invocations/{id}/rows", invocations.rows, "viewer", see),
        RouteRow("GET", "/invocations/{id}/timeline", invocations.timeline, "viewer", see),
        RouteRow("GET", "/invocations/{id}/events", invocations.events, "viewer", see),
        RouteRow("GET", "/invocations/{id}/events.json", invocations.events_json, "viewer", see),
        RouteRow("GET", "/approvals", approvals.inbox, "login"),
        RouteRow("GET", "/approvals/rows", approvals.inbox_rows, "login"),
        RouteRow("GET", "/approvals/several", approvals.several, "login"),
        RouteRow("POST", "/approvals/several", approvals.answer_several, "login"),
        RouteRow("GET", "/approvals/{id}", approvals.call, "viewer", see_call),
        RouteRow("POST", "/approvals/{id}", approvals.answer, "approver", answer),
        RouteRow("GET", "/approvals/{id}/edit", approvals.edit, "approver", answer),
        RouteRow("POST", "/approvals/{id}/edit", approvals.edit, "approver", answer),
        RouteRow("GET", "/approvals/{id}/arguments.json", approvals.arguments, "viewer", see_call),
        RouteRow("POST", "/approvals/{id}/viewed", approvals.viewed, "viewer", see_call),
        RouteRow("POST", "/api/invocations", api.start, "author"),
        RouteRow("POST", "/api/invocations/{id}/cancel", api.cancel, "author", _check_both(see, "author")),
        RouteRow("GET", "/api/invocations/{id}/forks", api.forks, "viewer", see),
        RouteRow("POST", "/api/invocations/{id}/forks", api.fork, "operator", _check_both(see, "operator")),
        RouteRow("POST", "/api/invocations/{id}/reset", api.reset, "operator", _check_both(see, "operator")),
        RouteRow("GET", "/api/invocations/{id}/prompt", api.prompt, "operator", _check_both(see, "operator")),
        RouteRow("GET", "/api/sessions/{id}/events", api.session_events, "login"),
        RouteRow("POST", "/api/sessions/{id}/messages", api.send, "author"),
        RouteRow("POST", "/api/sessions/{id}/close", api.close, "author"),
        RouteRow("GET", LOGIN, access.log_in, "public"),
        RouteRow("POST", LOGOUT, access.log_out, "login"),
        RouteRow("GET", STATIC, StaticFiles(packages=FILES), "public"),
    ]
    if access.gatekeeper.oidc is not None:
        rows.append(RouteRow("GET", CALLBACK, access.return_from_provider, "public"))
    if access.gatekeeper.links is not None:
        rows.append(RouteRow("POST", LINK, access.open_link, "public"))
    return rows


def _check_both(see: Check, role: Role) -> Check:
    """Return a check that the person may see the object in the path and has `role`."""

    async def check(request: Request) -> None:
        await see(request)
        check_role(request.state.login, role)

    return check


def build_routes(table: Sequence[RouteRow]) -> list[BaseRoute]:
    """Return the routes of a table.

    Raises:
        ValueError: A row has an unknown requirement.
    """
    return [_build(row) for row in table]


def _build(row: RouteRow) -> BaseRoute:
    if row.role not in REQUIREMENTS:
        raise ValueError(
            f"{row.method} {row.path} requires {row.role!r}; use one of {', '.join(sorted(REQUIREMENTS))}."
        )
    if isinstance(row.handler, StaticFiles):
        return Mount(row.path, row.handler)
    return Route(row.path, _protect(row, row.handler), methods=[row.method])


def _protect(row: RouteRow, handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        await _check(row, request)
        return await handler(request)

    return handle


async def _check(row: RouteRow, request: Request) -> None:
    if row.role == "public":
        return
    if request.state.login is None:
        raise Refused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", "Log in first.")
    if row.check is not None:
        await row.check(request)
    elif row.role != "login":
        check_role(request.state.login, row.role)
