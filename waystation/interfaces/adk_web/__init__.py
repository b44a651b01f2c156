"""The routes of ADK's `api_server`, and the browser front end of google-adk, on durable agents.

An app of ADK is one of the agents that workers serve. Sessions are those of the person who is logged in. Shapes and
status codes are those of google-adk 2.13, which the routes do not need. Only the front end's files come from it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from waystation.approvers import Role
from waystation.interfaces.adk_web.adk_artifacts import AdkArtifacts
from waystation.interfaces.adk_web.adk_debugging import AdkDebugging
from waystation.interfaces.adk_web.adk_graphs import AdkGraphs
from waystation.interfaces.adk_web.adk_runs import AdkRuns, refuse_live
from waystation.interfaces.adk_web.adk_sessions import AdkSessions
from waystation.interfaces.adk_web.front_end import make_front_end_rows
from waystation.interfaces.adk_web.path_names import AdkRoute, format_stream_refusal
from waystation.web.guard import JSON
from waystation.web.route_table import Method, RouteRow
from waystation.web.web_services import WebServices

__all__ = ["make_rows"]

ACCEPTED = (JSON, "")
"""Clients also create sessions without a body."""
_DEV = "/dev/apps/{app}"
UNSUPPORTED: dict[str, Any] = {
    "/config/telemetry": {"telemetry": False},
    f"{_DEV}/eval-sets": {"evalSetIds": []},
    f"{_DEV}/eval_sets": [],
    f"{_DEV}/eval-results": {"evalResultIds": []},
    f"{_DEV}/eval_results": [],
    f"{_DEV}/metrics-info": {"metricsInfo": []},
    f"{_DEV}/tests": [],
    f"{_DEV}/builder": "",
}
"""What the front end asks for and Waystation does not have, with the response of ADK's server that has none."""


def make_rows(services: WebServices) -> Sequence[RouteRow]:
    """Return the rows of ADK's routes."""
    sessions = AdkSessions(services)
    runs, artifacts, debugging = AdkRuns(services, sessions), AdkArtifacts(services, sessions), AdkDebugging(sessions)
    graphs = AdkGraphs(services, debugging)
    own = "/apps/{app}/users/{user}/sessions"
    one = f"{own}/{{session}}"
    files = f"{one}/artifacts"
    return [
        make_row("GET", "/list-apps", graphs.list_apps, "author"),
        make_row("GET", "/version", graphs.read_version),
        make_row("GET", "/run_live", refuse_live),
        make_row("POST", "/run", runs.run, "author"),
        make_row("POST", "/run_sse", runs.stream, "author", format_refusal=format_stream_refusal),
        make_row("GET", own, sessions.list_sessions),
        make_row("POST", own, sessions.create, "author"),
        make_row("GET", one, sessions.read),
        make_row("POST", one, sessions.create_named, "author"),
        make_row("PATCH", one, sessions.change_state, "author"),
        make_row("DELETE", one, sessions.delete, "author"),
        make_row("GET", files, artifacts.list_names),
        make_row("POST", files, artifacts.save, "author"),
        make_row("GET", f"{files}/{{name:path}}/versions/metadata", artifacts.list_metadata),
        make_row("GET", f"{files}/{{name:path}}/versions/{{version}}/metadata", artifacts.read_metadata),
        make_row("GET", f"{files}/{{name:path}}/versions/{{version}}", artifacts.load),
        make_row("GET", f"{files}/{{name:path}}/versions", artifacts.list_versions),
        make_row("GET", f"{files}/{{name:path}}", artifacts.load),
        make_row("GET", f"{_DEV}/users/{{user}}/sessions/{{session}}/events/{{event:path}}/graph", graphs.draw_event),
        make_row("GET", f"{_DEV}/graph", graphs.draw, "author"),
        make_row("GET", f"{_DEV}/build_graph", graphs.describe, "author"),
        make_row("GET", f"{_DEV}/build_graph_image", graphs.draw_levels, "author"),
        make_row("GET", f"{_DEV}/debug/trace/session/{{session}}", debugging.read_session_trace),
        make_row("GET", f"{_DEV}/debug/trace/{{event:path}}", debugging.read_event_trace),
        *(make_row("GET", path, _answer(content)) for path, content in UNSUPPORTED.items()),
        *make_front_end_rows(),
    ]


def make_row(
    method: Method, path: str, handle: Callable[..., Awaitable[Any]], role: Role | None = None, **options: Any
) -> RouteRow:
    """Return a row. Without a role, everybody who is logged in may use it: it shows only what belongs to the person."""
    accepts = () if method == "GET" else ACCEPTED
    return RouteRow(method, path, AdkRoute(handle, **options), role or "login", accepts=accepts)


def _answer(content: Any) -> Callable[..., Awaitable[Any]]:
    async def answer(_request: object) -> Any:
        return content

    return answer
