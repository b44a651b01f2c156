"""ADK's routes for sessions, which are those of the person who is logged in."""

import time
import uuid
from http import HTTPStatus
from typing import Any

import structlog
from starlette.requests import Request

from waystation.client import Session, SessionEntry
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import InvalidInput, MessageUnconfirmed, SessionExists, UnknownAgent, UnknownSession
from waystation.core.payload import JsonObject
from waystation.interfaces.adk_web.adk_bodies import CreateBody, StateBody
from waystation.interfaces.adk_web.adk_events import qualify_calls
from waystation.interfaces.adk_web.path_names import get_name
from waystation.sessions.recorded_session_service import read_session
from waystation.web.http_responses import RequestRefused
from waystation.web.session_pages import CONFIRM_WITHIN, SCANNED
from waystation.web.starter import check_state, identify_starter, tenant_of
from waystation.web.typed_routes import Body
from waystation.web.web_services import WebServices

log = structlog.get_logger("waystation.web")

LISTED = 100
"""Maximum number of sessions of an app to list. The latest are listed."""


class StateOnly(Body):
    """The body that is itself the state of a session."""

    model_config = {"extra": "allow"}


class AdkSessions:
    """The handlers for sessions."""

    def __init__(self, services: WebServices) -> None:
        self._services = services

    async def find(self, request: Request, app: str, session_id: str) -> Session:
        """Return an open session of the person with an agent.

        Raises:
            RequestRefused: The person has no such session, or has deleted it.
        """
        login = request.state.login
        session = self._services.starter.session(login, session_id, agent=app)
        place = await self._services.sessions.find(login, session.id)
        if place.refuses or place.entry.agent not in ("", app):
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownSession", f"Session not found: {session_id}")
        return session

    async def find_named(self, request: Request) -> Session:
        """Return the session that the path names."""
        return await self.find(request, get_name(request, "app"), get_name(request, "session"))

    async def list_sessions(self, request: Request) -> list[JsonObject]:
        """List the latest sessions with an agent, without their events and state."""
        login, app, client = request.state.login, get_name(request, "app"), self._services.client
        owner = DEFAULT_APP, identify_starter(login), tenant_of(login)
        found: list[SessionEntry] = []
        read = 0
        async for entry in client.sessions.list(tenant=tenant_of(login)):
            read += 1
            is_own = (entry.app, entry.user_id, entry.tenant) == owner and entry.agent in ("", app)
            if is_own and entry.status == "open":
                found.append(entry)
            if len(found) == LISTED or read == SCANNED:
                break
        ids = tuple(entry.id for entry in found)
        activities = await self._services.reads.read(("activities", ids), lambda: client.sessions.find_activities(ids))
        user = get_name(request, "user")
        return [
            {
                **describe_session(app, user, entry.session_id),
                "lastUpdateTime": (activities[entry.id].last_at or entry.started_at).timestamp(),
            }
            for entry in reversed(found)
        ]

    async def read(self, request: Request) -> JsonObject:
        """Return a session with its state and its events."""
        return await self._describe(request, await self.find_named(request))

    async def _describe(self, request: Request, session: Session) -> JsonObject:
        try:
            found = await read_session(session)
        except UnknownSession as error:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownSession", str(error)) from None
        names = {"app_name": get_name(request, "app"), "user_id": get_name(request, "user")}
        content: JsonObject = found.model_copy(update=names).model_dump(mode="json", by_alias=True, exclude_none=True)
        content["events"] = list(map(qualify_calls, content["events"]))
        return content

    async def create(self, request: Request, body: CreateBody) -> JsonObject:
        """Create a session with an ID of the client's choice, or a random one."""
        if body.events:
            text = (
                "A session cannot begin with `events`: its history contains what has happened. Send messages instead."
            )
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text)
        return await self._create(request, body.session_id or str(uuid.uuid4()), body.state or {})

    async def create_named(self, request: Request, body: StateOnly) -> JsonObject:
        """Create a session with the ID in the path. The body is its state."""
        return await self._create(request, get_name(request, "session"), body.model_extra or {})

    async def _create(self, request: Request, session_id: str, state: JsonObject) -> JsonObject:
        login, app = request.state.login, get_name(request, "app")
        check_state(login, state)
        session = self._services.starter.session(login, session_id, agent=app)
        try:
            await session.create(state)
        except UnknownAgent as error:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownAgent", str(error)) from None
        except SessionExists:
            text = f"Session with id {session_id} already exists. An ID stays in use after its session was deleted."
            raise RequestRefused(HTTPStatus.CONFLICT, "SessionExists", text) from None
        user = get_name(request, "user")
        return {**describe_session(app, user, session_id), "state": state, "lastUpdateTime": time.time()}

    async def change_state(self, request: Request, body: StateBody) -> JsonObject:
        """Change the state that the next invocation starts with. Return the session with the change."""
        session, delta = await self.find_named(request), body.state_delta
        if shared := next((key for key in delta if key.startswith(("user:", "app:"))), None):
            text = f"{shared!r} cannot be changed here. Pass it as `stateDelta` with a message, or change it in a tool."
            raise InvalidInput(text)
        await session.change_state(delta)
        described = await self._describe(request, session)
        return described | {"state": {**described["state"], **_without_temp(delta)}}

    async def delete(self, request: Request) -> Any:
        """Close a session, so that these routes no longer have it. Its history is kept, and open calls stay open."""
        try:
            session = await self.find_named(request)
            await session.close(confirm_within=CONFIRM_WITHIN)
        except RequestRefused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise
        except MessageUnconfirmed:
            text = "No worker has confirmed that the session is closed. It may still be closed later; read it again."
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "MessageUnconfirmed", text) from None
        else:
            log.info("session.closed", session_id=session.id, by=request.state.login.subject)


def describe_session(app: str, user: str, session_id: str) -> JsonObject:
    """Return a session without content, as ADK describes it."""
    return {"id": session_id, "appName": app, "userId": user, "state": {}, "events": []}


def _without_temp(state: JsonObject) -> JsonObject:
    return {key: value for key, value in state.items() if not key.startswith("temp:")}
