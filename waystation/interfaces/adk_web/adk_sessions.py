"""ADK's routes for the sessions of the person who is logged in, and for their files."""

import time
import uuid
from http import HTTPStatus
from typing import Any

from google.genai import types
from pydantic import ValidationError
from starlette.requests import Request

from waystation.client import Session, SessionEntry
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import InputValidationError, InvalidInput, SessionExists, UnknownAgent
from waystation.core.payload import JsonObject, describe_faults, encode
from waystation.interfaces.adk_web.adk_events import qualify_calls
from waystation.interfaces.adk_web.adk_routes import (
    CreateBody,
    CreateNamedBody,
    SavedPartBody,
    StateDeltaBody,
    get_name,
)
from waystation.sessions.recorded_session_service import read_session
from waystation.web.http_responses import RequestRefused
from waystation.web.session_pages import SCANNED
from waystation.web.starter import check_state, identify_starter, tenant_of
from waystation.web.web_services import WebServices

LISTED = 100
"""Maximum number of sessions of an app to list. The latest are listed."""


class AdkSessions:
    """The handlers for sessions and artifacts."""

    def __init__(self, services: WebServices) -> None:
        self._services = services

    async def find(self, request: Request, app: str, session_id: str) -> Session:
        """Return an open session of the person with an agent.

        Raises:
            RequestRefused: The person has no such session, or has deleted it.
        """
        session = self._services.starter.session(request.state.login, session_id, agent=app)
        place = request.state.place = await self._services.sessions.find(request.state.login, session.id)
        if place.refuses or place.entry.agent not in ("", app):
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownSession", f"Session not found: {session_id}")
        return session

    async def find_named(self, request: Request) -> Session:
        """Return the session that the path names."""
        return await self.find(request, get_name(request, "app"), get_name(request, "session"))

    async def list_sessions(self, request: Request) -> list[JsonObject]:
        """List the latest sessions with an agent, without their events and state."""
        app, client, tenant = get_name(request, "app"), self._services.client, tenant_of(request.state.login)
        owner = DEFAULT_APP, identify_starter(request.state.login), tenant
        found, read = list[SessionEntry](), 0
        async for entry in client.sessions.list(tenant=tenant):
            read += 1
            is_own = (entry.app, entry.user_id, entry.tenant) == owner and entry.agent == app
            if is_own and entry.status == "open":
                found.append(entry)
            if len(found) == LISTED or read == SCANNED:
                break
        ids = tuple(entry.id for entry in found)
        latest = await self._services.reads.read(("activities", ids), lambda: client.sessions.find_activities(ids))
        times = [(latest[entry.id].last_at or entry.started_at).timestamp() for entry in found]
        listed = [_describe(request, entry.session_id, at) for entry, at in zip(found, times, strict=True)]
        return listed[::-1]

    async def read(self, request: Request) -> JsonObject:
        """Return a session with its state and its events."""
        session = await self.find_named(request)
        content = (await read_session(session)).model_dump(mode="json", by_alias=True, exclude_none=True)
        names = {"appName": get_name(request, "app"), "userId": get_name(request, "user")}
        requests = dict[str, str]()
        return {**content, **names, "events": [qualify_calls(event, requests) for event in content["events"]]}

    async def create(self, request: Request, body: CreateBody) -> JsonObject:
        """Create a session with an ID of the client's choice, or a random one."""
        if body.events:
            text = "A session cannot begin with `events`: its history contains only what has happened. Send messages."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text)
        return await self._create(request, body.session_id or str(uuid.uuid4()), body.state or {})

    async def create_named(self, request: Request, body: CreateNamedBody) -> JsonObject:
        """Create a session with the ID in the path. The body is its state."""
        return await self._create(request, get_name(request, "session"), body.model_extra or {})

    async def _create(self, request: Request, session_id: str, state: JsonObject) -> JsonObject:
        check_state(request.state.login, state)
        session = self._services.starter.session(request.state.login, session_id, agent=get_name(request, "app"))
        try:
            await session.create(state)
        except UnknownAgent as error:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownAgent", str(error)) from None
        except SessionExists:
            text = f"Session with id {session_id} already exists. An ID stays in use after its session was deleted."
            raise RequestRefused(HTTPStatus.CONFLICT, "SessionExists", text) from None
        return {**_describe(request, session_id, time.time()), "state": state}

    async def change_state(self, request: Request, body: StateDeltaBody) -> JsonObject:
        """Change the state that the next invocation starts with. Return the session with the change."""
        if shared := next((key for key in body.state_delta if key.startswith(("user:", "app:"))), None):
            text = f"{shared!r} cannot be changed here. Pass it as `stateDelta` with a message, or change it in a tool."
            raise InvalidInput(text)
        await (await self.find_named(request)).change_state(body.state_delta)
        found = await self.read(request)
        kept = {key: value for key, value in body.state_delta.items() if not key.startswith("temp:")}
        return {**found, "state": {**found["state"], **kept}}

    async def delete(self, request: Request) -> None:
        """Close a session, so that these routes no longer have it. Its history is kept, and open calls stay open."""
        try:
            await self.find_named(request)
        except RequestRefused:  # there is no such session
            return
        if not await self._services.sessions.end(request):
            text = "No worker has confirmed that the session is closed. It may still be closed later; read it again."
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "MessageUnconfirmed", text)

    async def list_artifacts(self, request: Request) -> list[str]:
        """List the names of the files of a session, and of those of its user."""
        names: list[str] = await self._call(request, "list_artifact_keys")
        return names

    async def list_versions(self, request: Request) -> list[int]:
        """List the numbers of the versions of a file."""
        versions: list[int] = await self._call(request, "list_versions", filename=get_name(request, "name"))
        return versions

    async def load_artifact(self, request: Request) -> JsonObject:
        """Return the content of a file as a genai Part, by default of its latest version."""
        named = str(request.path_params.get("version") or request.query_params.get("version") or "latest")
        if named != "latest" and not (named.isascii() and named.isdecimal() and len(named) < 10):
            raise InvalidInput("The version must be a number, or `latest`.")
        version = None if named == "latest" else int(named)
        part = await self._call(request, "load_artifact", filename=get_name(request, "name"), version=version)
        if part is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownArtifact", "Artifact not found")
        content: JsonObject = part.model_dump(mode="json", by_alias=True, exclude_none=True)
        return content

    async def save_artifact(self, request: Request, body: SavedPartBody) -> JsonObject:
        """Save a new version of a file, and describe it without its place in the store."""
        try:
            part = types.Part.model_validate_json(encode(body.artifact))
        except ValidationError as error:
            raise InvalidInput(f"`artifact` is not a genai Part: {describe_faults(error)}.") from None
        data = part.text if part.inline_data is None else part.inline_data.data or b""
        if data is None:
            raise InvalidInput(
                "`artifact` has neither `text` nor `inlineData`. Files that are elsewhere are not saved."
            )
        session, store = await self.find_named(request), self._services.sessions.open_artifacts()
        mime = part.inline_data.mime_type if part.inline_data else None
        version = await session.save_artifact(body.filename, data, artifacts=store, mime_type=mime)
        saved = await self._call(request, "get_artifact_version", filename=body.filename, version=version)
        described: JsonObject = saved.model_dump(mode="json", by_alias=True, exclude={"canonical_uri"})
        return described

    async def _call(self, request: Request, method: str, **arguments: Any) -> Any:
        """Call a method of the artifact service for the session that the path names."""
        scope = (await self.find_named(request)).given.artifact_scope
        try:
            return await getattr(self._services.sessions.open_artifacts(), method)(**scope, **arguments)
        except InputValidationError as error:
            raise InvalidInput(str(error)) from None


def _describe(request: Request, session_id: str, updated_at: float) -> JsonObject:
    """Return a session without its content, as ADK describes it."""
    names = {"appName": get_name(request, "app"), "userId": get_name(request, "user")}
    return {"id": session_id, **names, "state": {}, "events": [], "lastUpdateTime": updated_at}
