"""The rows of the route table for the JSON API. Each requires what the page with the same content requires."""

from http import HTTPStatus

from waystation.web.call_answers import CallAnswers
from waystation.web.call_api import CallApi, Waits
from waystation.web.invocation_api import InvocationApi
from waystation.web.invocation_pages import InvocationPages
from waystation.web.paths import API_V1
from waystation.web.route_table import RouteRow, check_both
from waystation.web.schedule_api import ScheduleApi
from waystation.web.session_api import SessionApi
from waystation.web.session_pages import SessionPages
from waystation.web.spending_api import SpendingApi
from waystation.web.typed_routes import EVENTS, TypedRoute


def make_call_rows(calls: CallApi, answers: CallAnswers) -> list[RouteRow]:
    """Return the rows for calls."""
    path, stream = f"{API_V1}/calls", TypedRoute(calls.stream_calls, media=EVENTS, data=Waits)
    answer_call = TypedRoute(calls.answer_call, codes=(HTTPStatus.OK, HTTPStatus.ACCEPTED))
    return [
        RouteRow("GET", path, TypedRoute(calls.list_calls), "login"),
        RouteRow("GET", f"{path}/events", stream, "login"),
        RouteRow("POST", f"{path}/answers", TypedRoute(calls.answer_calls), "login"),
        RouteRow("GET", f"{path}/{{id}}", TypedRoute(calls.read_call), "viewer", answers.check_visible),
        RouteRow("POST", f"{path}/{{id}}/answers", answer_call, "approver", answers.check_answerable),
    ]


def make_invocation_rows(api: InvocationApi, invocations: InvocationPages) -> list[RouteRow]:
    """Return the rows for agents and invocations."""
    see = invocations.check_visible
    path, created = f"{API_V1}/invocations", (HTTPStatus.CREATED, HTTPStatus.OK)
    one, stop, operate = f"{path}/{{id}}", check_both(see, "author"), check_both(see, "operator")
    return [
        RouteRow("GET", f"{API_V1}/agents", TypedRoute(api.list_agents), "author"),
        RouteRow("GET", path, TypedRoute(api.list_invocations), "login"),
        RouteRow("POST", path, TypedRoute(api.start_invocation, codes=created), "author"),
        RouteRow("GET", one, TypedRoute(api.read_invocation), "viewer", see),
        RouteRow("GET", f"{one}/events", TypedRoute(api.read_invocation_events), "viewer", see),
        RouteRow("GET", f"{one}/events/stream", TypedRoute(api.stream_invocation, media=EVENTS), "viewer", see),
        RouteRow("GET", f"{one}/audit", TypedRoute(api.read_audit), "viewer", see),
        RouteRow("GET", f"{one}/report", TypedRoute(api.read_report, media="text/html"), "viewer", see),
        RouteRow("POST", f"{one}/retry", TypedRoute(api.retry_invocation), "operator", operate),
        RouteRow("POST", f"{one}/give-up", TypedRoute(api.give_up_invocation), "operator", operate),
        RouteRow("POST", f"{one}/forks", TypedRoute(api.fork_invocation, codes=created[:1]), "operator", operate),
        RouteRow("POST", f"{one}/stop", TypedRoute(api.stop_invocation), "author", stop),
    ]


def make_schedule_rows(api: ScheduleApi, spending: SpendingApi) -> list[RouteRow]:
    """Return the rows for schedules and budgets."""
    path, created = f"{API_V1}/schedules", (HTTPStatus.CREATED, HTTPStatus.OK)
    see, change = api.check_visible, api.check_changeable
    return [
        RouteRow("GET", path, TypedRoute(api.list_schedules), "login"),
        RouteRow("POST", path, TypedRoute(api.create_schedule, codes=created), "author"),
        RouteRow("GET", f"{path}/{{id}}", TypedRoute(api.read_schedule), "viewer", see),
        RouteRow("POST", f"{path}/{{id}}/pause", TypedRoute(api.pause_schedule), "author", change),
        RouteRow("POST", f"{path}/{{id}}/unpause", TypedRoute(api.unpause_schedule), "author", change),
        RouteRow("POST", f"{path}/{{id}}/trigger", TypedRoute(api.trigger_schedule), "author", api.check_own),
        RouteRow("POST", f"{path}/{{id}}/delete", TypedRoute(api.delete_schedule), "author", change),
        RouteRow("GET", f"{API_V1}/budgets", TypedRoute(spending.read_budgets), "login"),
    ]


def make_session_rows(api: SessionApi, sessions: SessionPages) -> list[RouteRow]:
    """Return the rows for sessions."""
    see, own, path = sessions.check_visible, sessions.check_own, f"{API_V1}/sessions"
    one, confirmed = f"{path}/{{id}}", (HTTPStatus.OK, HTTPStatus.ACCEPTED)
    created, binary = (HTTPStatus.CREATED, HTTPStatus.OK), "application/octet-stream"
    return [
        RouteRow("GET", path, TypedRoute(api.list_sessions), "login"),
        RouteRow("POST", path, TypedRoute(api.create_session, codes=created), "author"),
        RouteRow("GET", one, TypedRoute(api.read_session), "viewer", see),
        RouteRow("POST", f"{one}/messages", TypedRoute(api.send_message, codes=confirmed), "author", own),
        RouteRow("GET", f"{one}/events", TypedRoute(api.read_session_events), "viewer", see),
        RouteRow("GET", f"{one}/events/stream", TypedRoute(api.stream_session, media=EVENTS), "viewer", see),
        RouteRow("GET", f"{one}/state", TypedRoute(api.read_state), "viewer", see),
        RouteRow("POST", f"{one}/state", TypedRoute(api.change_state), "author", own),
        RouteRow("GET", f"{one}/artifacts", TypedRoute(api.list_artifacts), "viewer", see),
        RouteRow("POST", f"{one}/artifacts", TypedRoute(api.upload_artifact, codes=created[:1]), "author", own),
        RouteRow("GET", f"{one}/artifacts/content", TypedRoute(api.download_artifact, media=binary), "viewer", see),
        RouteRow("POST", f"{one}/close", TypedRoute(api.close_session, codes=confirmed), "author", own),
    ]
