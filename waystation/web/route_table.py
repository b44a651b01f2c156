"""All routes of the web application, each with the role that it requires.

The application is built from this table, so a route cannot exist without a requirement.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from waystation.approvers import ROLES, Role, check_role
from waystation.web.access import Access, find_metadata_path
from waystation.web.agent_pages import AgentPages
from waystation.web.approval_pages import ApprovalPages
from waystation.web.completion_route import CompletionRoute
from waystation.web.fork_pages import ForkPages
from waystation.web.http_responses import RequestRefused
from waystation.web.inbox_pages import InboxPages
from waystation.web.invocation_pages import InvocationPages
from waystation.web.json_api import JsonApi
from waystation.web.paths import CALLBACK, COMPLETIONS, HOOKS, LINK, LOGIN, LOGOUT, STATIC
from waystation.web.session_pages import SessionPages
from waystation.web.trigger_route import TriggerRoute
from waystation.web.typed_routes import check_same_origin

Handler = Callable[[Request], Awaitable[Response]]
Check = Callable[[Request], Awaitable[None]]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
METHODS: tuple[Method, ...] = get_args(Method)
Requirement = Literal["public", "login", "machine"] | Role
"""`public` admits everybody. `login` admits people who are logged in; the handler shows only what they may see.
`machine` admits requests without a login, whose URL or signature proves what they may do; the handler verifies it.
"""
REQUIREMENTS = {"public", "login", "machine", *ROLES}
FILES: list[str | tuple[str, str]] = [("waystation.web", "static"), ("waystation.presentation", "static")]


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A route and its requirement."""

    method: Method
    path: str
    handler: Handler | StaticFiles
    role: Requirement
    check: Check | None = None
    """Checks access to the object in the path instead of `role`: even without the role, people may see what they
    requested, and answer calls that name them. None for a route without such an object.
    """
    accepts: tuple[str, ...] = ()
    """For a route of a protocol: the content types of its requests. A change with a cookie then needs no form, but has
    to come from a page of this server."""


def make_table(
    access: Access,
    invocations: InvocationPages,
    inbox: InboxPages,
    approvals: ApprovalPages,
    api: JsonApi,
    forks: ForkPages,
    agents: AgentPages,
    sessions: SessionPages,
    completions: CompletionRoute | None = None,
    triggers: TriggerRoute | None = None,
) -> list[RouteRow]:
    """Return the table. If the paths of several rows match a request, the first of these rows counts."""
    see, see_call, answer = (
        invocations.check_visible,
        approvals.answers.check_visible,
        approvals.answers.check_answerable,
    )
    act = invocations.actions
    rows = [
        RouteRow("GET", "/", invocations.list.start, "login"),
        RouteRow("GET", "/invocations", invocations.list.page, "login"),
        RouteRow("GET", "/invocations/{id}", invocations.invocation, "viewer", see),
        RouteRow("GET", "/invocations/{id}/rows", invocations.rows, "viewer", see),
        RouteRow("GET", "/invocations/{id}/overview", invocations.overview, "viewer", see),
        RouteRow("GET", "/invocations/{id}/timeline", invocations.timeline, "viewer", see),
        RouteRow("GET", "/invocations/{id}/models", invocations.models, "viewer", see),
        RouteRow("GET", "/invocations/{id}/state", invocations.state, "viewer", see),
        RouteRow("GET", "/invocations/{id}/report", invocations.report, "viewer", see),
        RouteRow("POST", "/invocations/{id}/stop", act.stop, "author", check_both(see, "author")),
        RouteRow("POST", "/invocations/{id}/retry", act.retry, "operator", check_both(see, "operator")),
        RouteRow("POST", "/invocations/{id}/give-up", act.give_up, "operator", check_both(see, "operator")),
        RouteRow("GET", "/invocations/{id}/events", invocations.events, "viewer", see),
        RouteRow("GET", "/invocations/{id}/events.json", invocations.events_json, "viewer", see),
        RouteRow("GET", "/invocations/{id}/fork", forks.form, "operator", check_both(see, "operator")),
        RouteRow("POST", "/invocations/{id}/fork", forks.fork, "operator", check_both(see, "operator")),
        RouteRow("GET", "/invocations/{id}/compare", forks.compare, "viewer", see),
        RouteRow("GET", "/approvals", inbox.inbox, "login"),
        RouteRow("GET", "/approvals/rows", inbox.rows, "login"),
        RouteRow("GET", "/approvals/events", inbox.events, "login"),
        RouteRow("GET", "/approvals/several", approvals.several, "login"),
        RouteRow("POST", "/approvals/several", approvals.answer_several, "login"),
        RouteRow("GET", "/approvals/{id}", approvals.call, "viewer", see_call),
        RouteRow("POST", "/approvals/{id}", approvals.answer, "approver", answer),
        RouteRow("GET", "/approvals/{id}/edit", approvals.edit, "approver", answer),
        RouteRow("POST", "/approvals/{id}/edit", approvals.edit, "approver", answer),
        RouteRow("GET", "/approvals/{id}/events", inbox.call_events, "viewer", see_call),
        RouteRow("GET", "/approvals/{id}/arguments.json", approvals.arguments, "viewer", see_call),
        RouteRow("POST", "/approvals/{id}/viewed", approvals.viewed, "viewer", see_call),
        RouteRow("POST", "/api/invocations", api.start, "author"),
        RouteRow("POST", "/api/invocations/{id}/cancel", api.cancel, "author", check_both(see, "author")),
        RouteRow("GET", "/api/invocations/{id}/forks", api.forks, "viewer", see),
        RouteRow("POST", "/api/invocations/{id}/forks", api.fork, "operator", check_both(see, "operator")),
        RouteRow("POST", "/api/invocations/{id}/reset", api.reset, "operator", check_both(see, "operator")),
        RouteRow("GET", "/api/invocations/{id}/prompt", api.prompt, "operator", check_both(see, "operator")),
        RouteRow("GET", "/api/sessions/{id}/events", api.session_events, "login"),
        RouteRow("POST", "/api/sessions/{id}/messages", api.send, "author"),
        RouteRow("POST", "/api/sessions/{id}/close", api.close, "author"),
        *make_chat_rows(agents, sessions),
        *make_login_rows(access),
    ]
    if access.gatekeeper.links is not None:
        rows.append(RouteRow("POST", LINK, access.open_link, "public"))
    if completions is not None:
        rows.append(RouteRow("POST", f"{COMPLETIONS}{{token}}", completions.deliver, "machine"))
    if triggers is not None:
        rows.append(RouteRow("POST", f"{HOOKS}{{name}}", triggers.deliver, "machine"))
    return rows


def make_chat_rows(agents: AgentPages, sessions: SessionPages) -> list[RouteRow]:
    """Return the rows for agents and sessions."""
    see, own = sessions.check_visible, sessions.check_own
    return [
        RouteRow("GET", "/agents", agents.index, "author"),
        RouteRow("GET", "/sessions", sessions.index, "login"),
        RouteRow("GET", "/sessions/new", agents.new, "author"),
        RouteRow("POST", "/sessions/new", agents.start, "author"),
        RouteRow("GET", "/sessions/{id}", sessions.page, "viewer", see),
        RouteRow("POST", "/sessions/{id}", sessions.send, "author", own),
        RouteRow("GET", "/sessions/{id}/turns", sessions.turns, "viewer", see),
        RouteRow("POST", "/sessions/{id}/close", sessions.close, "author", own),
        RouteRow("GET", "/sessions/{id}/artifact", sessions.artifact, "viewer", see),
    ]


def make_login_rows(access: Access) -> list[RouteRow]:
    """Return the rows for logging in and out, and for the files of their pages."""
    rows = [RouteRow("GET", STATIC, StaticFiles(packages=FILES), "public")]
    if access.find_person is None:
        rows.append(RouteRow("GET", LOGIN, access.log_in, "public"))
        rows.append(RouteRow("POST", LOGOUT, access.log_out, "login"))
        if access.gatekeeper.oidc is not None:
            rows.append(RouteRow("GET", CALLBACK, access.return_from_provider, "public"))
    if path := find_metadata_path(access.gatekeeper):
        rows.append(RouteRow("GET", path, access.describe_resource, "public"))
    return rows


def check_both(see: Check, role: Role) -> Check:
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
        if row.accepts and row.role != "public":
            check_same_origin(request)
        await _check(row, request)
        return await handler(request)

    return handle


async def _check(row: RouteRow, request: Request) -> None:
    if row.role == "public" or row.role == "machine":  # mypy narrows only comparisons
        return
    if request.state.login is None:
        raise RequestRefused(HTTPStatus.UNAUTHORIZED, "NotLoggedIn", "Log in first.")
    if row.check is not None:
        await row.check(request)
    elif row.role != "login":
        check_role(request.state.login, row.role)
