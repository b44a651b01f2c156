"""The JSON API for sessions: create, list and read them, send messages, follow them, and exchange files."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from http import HTTPStatus
from typing import Literal

import structlog
from pydantic import Base64Bytes, Field
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from waystation.client import Session, SessionEntry
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import MessageUnconfirmed, SessionExists, WaystationError
from waystation.core.payload import JsonObject, digest
from waystation.core.session_log import Busy
from waystation.web.invocation_api import EventNumber, Events, EventsQuery, StreamQuery
from waystation.web.invocation_pages import RETRY_MS, InvocationPages, format_events, format_json
from waystation.web.list_query import MAX_FILTER_CHARS
from waystation.web.session_pages import Place, SessionPages
from waystation.web.starter import AgentName, AppName, MessageFields, Starter, check_state
from waystation.web.typed_routes import Body, Query, ReplyBody, set_status

log = structlog.get_logger("waystation.web")

CONFIRM_WITHIN = timedelta(seconds=30)
MAX_NAME_CHARS = 500


class SessionsQuery(Query):
    """The sessions to list."""

    q: str = Field(default="", max_length=MAX_FILTER_CHARS)
    """Words that a session contains, in any order."""
    start: EventNumber = 0
    """The number of sessions to skip."""


class SessionList(ReplyBody):
    """A page of sessions, latest first."""

    sessions: tuple[SessionEntry, ...]
    """The `id` of a session is its ID in paths. Its `session_id` tells it from the others of its user."""
    more: bool
    complete: bool
    """Whether all sessions were searched."""


class SessionBody(Body):
    """A session to create."""

    agent: AgentName
    app: AppName = DEFAULT_APP
    session_id: str | None = Field(default=None, min_length=1, max_length=200)
    """An ID that you choose. By default, the server chooses one."""
    state: JsonObject = {}


class CreatedSession(ReplyBody):
    """A session of the caller."""

    id: str
    session_id: str
    existed: bool
    """Whether an earlier request with the same key has created it."""


class SessionMessageBody(MessageFields):
    """A message to a session."""

    when_busy: Busy = "queue"
    agent: AgentName | None = None
    """The agent that handles this message and those after it. By default, the agent does not change."""


class SentMessage(ReplyBody):
    """The handling of a message."""

    invocation_id: str | None
    """None if no worker has confirmed the message yet. Send it again with the same key to find out."""
    status: str
    """`started`, `queued`, `joined` or `unconfirmed`."""
    duplicate: bool


class ClosedSession(ReplyBody):
    """Whether a worker has confirmed that the session accepts no more messages."""

    id: str
    status: Literal["closed", "unconfirmed"]


class StateBody(Body):
    """The state of a session. A change ignores keys with `user:`, `app:` or `temp:`."""

    state: JsonObject


class Artifact(ReplyBody):
    """A file of a session."""

    name: str
    version: int
    mime_type: str | None = None


class ArtifactList(ReplyBody):
    """The files of a session, each with its latest version."""

    artifacts: tuple[Artifact, ...]
    left_out: int
    problem: str
    """Why the store with the files cannot be read. Empty if it can."""


class ArtifactQuery(Query):
    """The file to download."""

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    version: EventNumber | None = None


class ArtifactBody(Body):
    """A file to upload."""

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    data: Base64Bytes
    """The content in Base64."""
    mime_type: str = Field(default="application/octet-stream", max_length=200)


class SessionApi:
    """The routes for sessions."""

    def __init__(self, sessions: SessionPages, invocations: InvocationPages, starter: Starter) -> None:
        self._sessions, self._invocations, self._starter = sessions, invocations, starter

    async def list_sessions(self, request: Request, query: SessionsQuery) -> SessionList:
        """List the sessions that the caller may see, latest first."""
        rows, more, is_cut = await self._sessions.list(request.state.login, query.q, query.start)
        return SessionList(sessions=tuple(row["entry"] for row in rows), more=more, complete=not is_cut)

    async def create_session(self, request: Request, body: SessionBody, key: str | None) -> CreatedSession:
        """Create a session of the caller.

        The status is 200 if an earlier request with the same key has created it, or else 201.
        """
        login = request.state.login
        check_state(login, body.state)
        id = body.session_id or (f"chat-{digest([key])[:16]}" if key else f"chat-{secrets.token_hex(8)}")
        session, existed = self._starter.session(login, id, agent=body.agent, app=body.app), False
        try:
            await session.create(body.state)
        except SessionExists:
            if key is None:
                raise
            existed = True
            set_status(request, HTTPStatus.OK)
        return CreatedSession(id=session.id, session_id=id, existed=existed)

    async def read_session(self, request: Request) -> SessionEntry:
        """Read a session."""
        entry: SessionEntry = request.state.place.entry
        return entry

    async def send_message(self, request: Request, body: SessionMessageBody, key: str | None) -> SentMessage:
        """Send a message to a session of the caller. Read the invocation to wait for its result.

        The status is 202 if no worker has confirmed the message in time.
        """
        login, session, options = request.state.login, request.state.place.session, body.options()
        options |= {"message_id": key, "create": False, "confirm_within": CONFIRM_WITHIN}
        try:
            sent = await self._starter.send(login, session, options.pop("message"), **options)
        except MessageUnconfirmed:
            set_status(request, HTTPStatus.ACCEPTED)
            return SentMessage(invocation_id=None, status="unconfirmed", duplicate=False)
        return SentMessage(invocation_id=sent.id, status=sent.status, duplicate=sent.duplicate)

    async def read_session_events(self, request: Request, query: EventsQuery) -> Events:
        """Read events of a session. A running invocation contributes only its message."""
        events = await request.state.place.session.events(start=query.start)
        return Events(**format_events(events, query.start))

    async def stream_session(self, request: Request, query: StreamQuery) -> Response:
        """Stream the events of a session, from the past ones on, until it ends.

        After a reconnection, the events are sent again; the `invocation_id` and the `index` of an event tell which ones
        you have. The last event is named `end`.
        """
        session = request.state.place.session
        return self._invocations.respond(request.state.login, self._follow(session, query))

    async def _follow(self, session: Session, query: StreamQuery) -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(comment="events follow", retry=RETRY_MS)
        number = 0
        try:
            async with aclosing(session.follow(partial=query.partial)) as events:  # type: ignore[type-var]  # a generator
                async for event in events:
                    if event.partial or number >= query.start:
                        kind = "partial" if event.partial else None
                        yield ServerSentEvent(format_json(event.to_json()), event=kind)
                    number += not event.partial
            yield ServerSentEvent("{}", event="end")
        except (RPCError, WaystationError) as error:
            # Just end the stream: the client connects again.
            log.warning("stream.broken", session_id=session.id, error_type=type(error).__name__)

    async def close_session(self, request: Request, body: Body) -> ClosedSession:
        """Close a session of the caller: it accepts no more messages. Without a confirmation, the status is 202."""
        is_confirmed = await self._sessions.end(request)
        if not is_confirmed:
            set_status(request, HTTPStatus.ACCEPTED)
        return ClosedSession(id=request.state.place.session.id, status="closed" if is_confirmed else "unconfirmed")

    async def read_state(self, request: Request) -> StateBody:
        """Read the state of a session, with that of its user and its app."""
        return StateBody(state=await request.state.place.session.state())

    async def change_state(self, request: Request, body: StateBody, key: str | None) -> StateBody:
        """Change the state that the next invocation of a session starts with."""
        await request.state.place.session.change_state(body.state, change_id=key)
        return body

    async def list_artifacts(self, request: Request) -> ArtifactList:
        """List the files of a session."""
        found = await self._sessions.list_artifacts(request.state.place)
        files = [Artifact(name=name, version=each.version, mime_type=each.mime_type) for name, each in found["rows"]]
        return ArtifactList(artifacts=tuple(files), left_out=found["left_out"], problem=found["problem"])

    async def download_artifact(self, request: Request, query: ArtifactQuery) -> Response:
        """Download a file of a session, by default its latest version."""
        return await self._sessions.download(request.state.place, query.name, query.version)

    async def upload_artifact(self, request: Request, body: ArtifactBody) -> Artifact:
        """Save a new version of a file of a session, which its tools can load."""
        place: Place = request.state.place
        store = self._sessions.open_artifacts()
        version = await place.session.save_artifact(body.name, body.data, artifacts=store, mime_type=body.mime_type)
        return Artifact(name=body.name, version=version, mime_type=body.mime_type)
