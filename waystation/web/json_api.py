"""The JSON API: start, continue, cancel, fork and reset invocations, and read prompts and sessions.

The routes are thin: each validates its input and calls the client. The person comes from the login.
"""

from contextlib import suppress
from http import HTTPStatus

import structlog
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.service import RPCError

from waystation.approvers import sees_invocation
from waystation.client import AgentClient
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import UnknownSession, WaystationError
from waystation.core.session_log import Busy
from waystation.replay import Recording, prompt_at
from waystation.web.access import is_equal
from waystation.web.http_responses import RequestRefused
from waystation.web.invocation_pages import InvocationPages, format_events, get_id, parse_number
from waystation.web.logins import Login
from waystation.web.starter import AppName, ForkBody, StartBody, Starter, tenant_of
from waystation.web.typed_routes import Body, BodyType, read_body

log = structlog.get_logger("waystation.web")

CSRF_HEADER = "X-CSRF-Token"
ANY_AGENT = "-"
"""Agent name in session handles that start no invocations."""


class MessageBody(StartBody):
    """The body of `POST /api/invocations`."""

    message_id: str | None = Field(default=None, min_length=1, max_length=200)
    """An ID that the sender chooses. A message that is sent again with the same ID counts only once."""


class SendBody(MessageBody):
    """The body of `POST /api/sessions/{id}/messages`."""

    when_busy: Busy = "queue"
    create: bool = True


class CloseBody(Body):
    """The body of `POST /api/sessions/{id}/close`."""

    app: AppName = DEFAULT_APP


class ResetBody(Body):
    """The body of `POST /api/invocations/{id}/reset`."""

    event_id: int = Field(ge=1, le=2**31)
    reason: str = Field(min_length=1, max_length=1_000)
    keep_answers: bool = False


class JsonApi:
    """The routes of the JSON API that change something, and those for sessions and prompts."""

    def __init__(self, client: AgentClient, invocations: InvocationPages, starter: Starter) -> None:
        self._client, self._invocations, self._starter = client, invocations, starter

    async def start(self, request: Request) -> Response:
        """Start an invocation. If the person already started one with this app, agent and `message_id`, return that."""
        options = (await _read(request, MessageBody)).options()
        started = await self._starter.start(request.state.login, key=options.pop("message_id"), **options)
        code = HTTPStatus.OK if started.existed else HTTPStatus.CREATED
        return JSONResponse({"invocation_id": started.id, "existed": started.existed}, code)

    async def cancel(self, request: Request) -> Response:
        """Request the cancellation of an invocation."""
        await _read(request, Body)
        id, _ = await self._invocations.actions.act(request, "stop")
        return JSONResponse({"invocation_id": id}, HTTPStatus.ACCEPTED)

    async def fork(self, request: Request) -> Response:
        """Fork an invocation at an event or, to retry a failed step, at its last event."""
        body = await _read(request, ForkBody)
        source, _ = await self._invocations.find(request)
        fork = await self._starter.fork(request.state.login, source.id, **dict(body))
        return JSONResponse({"invocation_id": fork.id, "source": source.id}, HTTPStatus.CREATED)

    async def forks(self, request: Request) -> Response:
        """Return the ID of each fork of an invocation, and the event at which it was forked."""
        source, _ = await self._invocations.find(request)
        forks = [{"invocation_id": fork.id, "event": fork.event} for fork in await self._client.forks.of(source.id)]
        return JSONResponse({"invocation_id": source.id, "forks": forks})

    async def reset(self, request: Request) -> Response:
        """Reset an invocation to the end of a workflow task. The recorded reason starts with the person's subject."""
        body = await _read(request, ResetBody)
        invocation, _ = await self._invocations.find(request)
        reason = f"{request.state.login.subject}: {body.reason}"
        run_id = await self._client.reset(invocation.id, body.event_id, reason=reason, keep_answers=body.keep_answers)
        return _respond(request, "reset", invocation.id, HTTPStatus.CREATED, run_id=run_id)

    async def prompt(self, request: Request) -> Response:
        """Return the prompt at event `?event=` (default: the last event), as `waystation prompt` does."""
        number = request.query_params.get("event")
        invocation, _ = await self._invocations.find(request)
        recording = await Recording.of(invocation)
        input, session = recording.log.state.input, None
        if input is not None and input.session is not None:
            with suppress(RPCError, WaystationError):  # a remark then says that the earlier messages are missing
                session = await Recording.of(self._client.invocation(input.session.id))
        prompt = await prompt_at(recording, parse_number(number, "event") if number else None, session=session)
        return JSONResponse(
            {
                "invocation_id": invocation.id,
                "event": prompt.at,
                "agent": prompt.agent,
                "contents": list(prompt.contents),
                "remarks": list(prompt.remarks),
            }
        )

    async def send(self, request: Request) -> Response:
        """Send a message to a session of the person who is logged in."""
        options, login = (await _read(request, SendBody)).options(), request.state.login
        names = {name: options.pop(name) for name in ("agent", "app")}
        session = self._starter.session(login, get_id(request), **names)
        sent = await self._starter.send(login, session, options.pop("message"), **options)
        content = {"invocation_id": sent.id, "status": sent.status, "duplicate": sent.duplicate}
        return JSONResponse(content, HTTPStatus.CREATED)

    async def close(self, request: Request) -> Response:
        """Close a session of the person who is logged in."""
        body = await _read(request, CloseBody)
        session = self._starter.session(request.state.login, get_id(request), agent=ANY_AGENT, app=body.app)
        await session.close()
        return JSONResponse({"session_id": session.given.session_id})

    async def session_events(self, request: Request) -> Response:
        """Return a session's events, starting at `?start=`. Viewers can read other users' sessions with `?user_id=`."""
        params, login = request.query_params, request.state.login
        user = params.get("user_id") or login.subject
        app = params.get("app") or DEFAULT_APP
        session = self._starter.session(login, get_id(request), agent=ANY_AGENT, app=app, user_id=user)
        if not sees_invocation(login, (user,), tenant_of(login)):
            raise UnknownSession(f"There is no session {get_id(request)!r} of {user!r} that you may see.")
        start = parse_number(params.get("start"), "start")
        page = format_events(await session.events(start=start), start)
        return JSONResponse({"session_id": session.given.session_id, **page})


async def _read(request: Request, kind: type[BodyType]) -> BodyType:
    """Read the body of a request, which may be empty if no field is required.

    Raises:
        Refused: A browser's request lacks the login's CSRF token, so it may come from another site.
        InvalidInput: The body is not JSON, or has an invalid, unknown or repeated field.
    """
    login: Login = request.state.login
    if login.browser and not is_equal(request.headers.get(CSRF_HEADER, ""), login.csrf):
        text = f"The header {CSRF_HEADER} lacks this login's token. Send the value of the field `csrf` of any page."
        raise RequestRefused(HTTPStatus.FORBIDDEN, "ForeignForm", text)
    return await read_body(request, kind)


def _respond(request: Request, event: str, invocation_id: str, code: HTTPStatus, **fields: object) -> Response:
    """Log what the person did, and return the response."""
    log.info(f"invocation.{event}", invocation_id=invocation_id, by=request.state.login.subject, **fields)
    return JSONResponse({"invocation_id": invocation_id, **fields}, code)
