"""The routes of ADK's `api_server`, and the browser front end of google-adk, on durable agents.

An app of ADK is one of the agents that workers serve. Sessions are those of the person who is logged in. Shapes and
status codes are those of google-adk 2.13, which the routes do not need. Only the front end's files come from it.
"""

import platform
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from waystation.interfaces.adk_web.adk_debugging import AdkDebugging
from waystation.interfaces.adk_web.adk_routes import AdkRoute
from waystation.interfaces.adk_web.adk_runs import AdkRuns, refuse_live
from waystation.interfaces.adk_web.adk_sessions import AdkSessions
from waystation.interfaces.adk_web.front_end import make_front_end_rows
from waystation.version import waystation_version
from waystation.web.guard import JSON
from waystation.web.route_table import Method, Requirement, RouteRow
from waystation.web.web_services import WebServices

__all__ = ["make_rows"]

ACCEPTED = (JSON, "")
"""Clients also create sessions without a body."""
SESSIONS, DEV = "/apps/{app}/users/{user}/sessions", "/dev/apps/{app}"
FIXED: dict[str, Any] = {
    "/version": {"version": waystation_version(), "language": "python", "language_version": platform.python_version()},
    "/config/telemetry": {"telemetry": False},
    f"{DEV}/eval-sets": {"evalSetIds": []},
    f"{DEV}/eval_sets": [],
    f"{DEV}/eval-results": {"evalResultIds": []},
    f"{DEV}/eval_results": [],
    f"{DEV}/metrics-info": {"metricsInfo": []},
    f"{DEV}/tests": [],
    f"{DEV}/builder": "",
}
"""Responses that never change. Waystation has no evaluations and no builder here, so their lists are empty."""


def make_rows(services: WebServices) -> Sequence[RouteRow]:
    """Return the rows of ADK's routes."""
    sessions = AdkSessions(services)
    runs, debugging = AdkRuns(services, sessions), AdkDebugging(services, sessions)
    one = f"{SESSIONS}/{{session}}"
    file = f"{one}/artifacts/{{name:path}}"
    return [
        make_row("GET", "/list-apps", debugging.list_apps, "author"),
        make_row("GET", "/run_live", refuse_live),
        make_row("POST", "/run", runs.run, "author"),
        make_row("POST", "/run_sse", runs.stream, "author"),
        make_row("GET", SESSIONS, sessions.list_sessions),
        make_row("POST", SESSIONS, sessions.create, "author"),
        make_row("GET", one, sessions.read),
        make_row("POST", one, sessions.create_named, "author"),
        make_row("PATCH", one, sessions.change_state, "author"),
        make_row("DELETE", one, sessions.delete, "author"),
        make_row("GET", f"{one}/artifacts", sessions.list_artifacts),
        make_row("POST", f"{one}/artifacts", sessions.save_artifact, "author"),
        make_row("GET", f"{file}/versions/{{version}}", sessions.load_artifact),
        make_row("GET", f"{file}/versions", sessions.list_versions),
        make_row("GET", file, sessions.load_artifact),
        make_row("GET", f"{DEV}/graph", debugging.draw, "author"),
        make_row("GET", f"{DEV}/build_graph", debugging.describe, "author"),
        make_row("GET", f"{DEV}/build_graph_image", debugging.draw_levels, "author"),
        make_row("GET", f"{DEV}/users/{{user}}/sessions/{{session}}/events/{{event:path}}/graph", debugging.draw_event),
        make_row("GET", f"{DEV}/debug/trace/session/{{session}}", debugging.read_session_trace),
        make_row("GET", f"{DEV}/debug/trace/{{event:path}}", debugging.read_event_trace),
        *(make_row("GET", path, _answer(content)) for path, content in FIXED.items()),
        *make_front_end_rows(),
    ]


def make_row(method: Method, path: str, handle: Callable[..., Awaitable[Any]], role: Requirement = "login") -> RouteRow:
    """Return a row. Without a role, everybody who is logged in may use it: it has only what belongs to the person."""
    return RouteRow(method, path, AdkRoute(handle), role, accepts=() if method == "GET" else ACCEPTED)


def _answer(content: Any) -> Callable[..., Awaitable[Any]]:
    async def answer(_request: object) -> Any:
        return content

    return answer
