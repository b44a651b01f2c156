"""The JSON API: start, continue, cancel, fork and reset invocations, and read prompts and sessions.

The routes are thin: each validates its input and calls the client. The person comes from the login.
"""

from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, TypeVar

import structlog
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from waystation.approvers import Gatekeeper, check_role, sees_invocation
from waystation.client import AgentClient, Session
from waystation.core.budget import Budget
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER, TextInterval
from waystation.core.errors import InvalidInput, UnknownSession, WaystationError
from waystation.core.payload import JsonObject, Recorded, digest, parse, repeated_key
from waystation.core.session_log import Busy
from waystation.replay import Recording, prompt_at
from waystation.web.access import is_equal
from waystation.web.http_responses import RequestRefused
from waystation.web.invocation_pages import InvocationPages, format_events, get_id, parse_number
from waystation.web.logins import Login

log = structlog.get_logger("waystation.web")

CSRF_HEADER = "X-CSRF-Token"
ANY_AGENT = "-"
"""Agent name in session handles that start no invocations."""

AppName = Annotated[str, Field(min_length=1, max_length=200)]
AgentName = Annotated[str, Field(pattern=r"^[^\W\d]\w*$", max_length=200)]


class Body(Recorded):
    """The body of a request. Unknown fields are rejected, so that a misspelled limit is not silently ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class MessageBody(Body):
    """The body of `POST /api/invocations`."""

    agent: AgentName
    message: str | JsonObject
    app: AppName = DEFAULT_APP
    state: JsonObject = {}
    budget: Budget | None = None
    metadata: JsonObject = {}
    streaming: bool = False
    text_interval_s: TextInterval | None = None
    message_id: str | None = Field(default=None, min_length=1, max_length=200)
    """An ID that the sender chooses. A message that is sent again with the same ID counts only once."""

    def options(self) -> dict[str, Any]:
        """Return the arguments for the client."""
        options = dict(self)
        if (interval_s := options.pop("text_interval_s")) and self.streaming:
            options["streaming"] = timedelta(seconds=interval_s)
        return options


class SendBody(MessageBody):
    """The body of `POST /api/sessions/{id}/messages`."""

    when_busy: Busy = "queue"
    create: bool = True


class CloseBody(Body):
    """The body of `POST /api/sessions/{id}/close`."""

    app: AppName = DEFAULT_APP


class ForkBody(Body):
    """The body of `POST /api/invocations/{id}/forks`."""

    event: int | None = Field(default=None, ge=1)
    message: str | JsonObject | None = None
    agent: AgentName | None = None
    instruction: str | None = Field(default=None, max_length=100_000)
    model: str | None = Field(default=None, max_length=200)
    results: dict[str, JsonObject] = {}
    budget: Budget | None = None


class ResetBody(Body):
    """The body of `POST /api/invocations/{id}/reset`."""

    event_id: int = Field(ge=1, le=2**31)
    reason: str = Field(min_length=1, max_length=1_000)
    keep_answers: bool = False


BodyType = TypeVar("BodyType", bound=Body)
MessageType = TypeVar("MessageType", bound=MessageBody)


class JsonApi:
    """The routes of the JSON API that change something, and those for sessions and prompts."""

    def __init__(self, client: AgentClient, invocations: InvocationPages, gatekeeper: Gatekeeper) -> None:
        self._client, self._invocations, self._gatekeeper = client, invocations, gatekeeper

    async def start(self, request: Request) -> Response:
        """Start an invocation. If the person already started one with this app, agent and `message_id`, return that."""
        body, login = await _read_message(request, MessageBody), request.state.login
        person, tenant, options = identify_starter(login), tenant_of(login), body.options()
        # People cannot choose an invocation's ID. Otherwise, they could occupy the IDs that other people need.
        key = options.pop("message_id")
        names = [person, body.app, body.agent, key, *([tenant] if tenant else [])]
        id = f"{body.agent}-{digest(names)}" if key else None
        token = self._gatekeeper.make_signer(login)
        options |= {"user_id": person, "requester": person, "tenant": tenant, "token": token}
        invocation = await self._client.start(**options, id=id)
        code = HTTPStatus.OK if invocation.existed else HTTPStatus.CREATED
        return _respond(request, "started", invocation.id, code, existed=invocation.existed)

    async def cancel(self, request: Request) -> Response:
        """Request the cancellation of an invocation."""
        await _read(request, Body)
        invocation, described = await self._invocations.find(request)
        if described.status is not WorkflowExecutionStatus.RUNNING:
            text = f"{invocation.id!r} has already ended, so it cannot be canceled."
            raise RequestRefused(HTTPStatus.CONFLICT, "InvocationEnded", text)
        await invocation.cancel()
        return _respond(request, "cancel_requested", invocation.id, HTTPStatus.ACCEPTED)

    async def fork(self, request: Request) -> Response:
        """Fork an invocation at an event or, to retry a failed step, at its last event."""
        body = await _read(request, ForkBody)
        source, _ = await self._invocations.find(request)
        person, token = identify_starter(request.state.login), self._gatekeeper.make_signer(request.state.login)
        fork = await self._client.forks.start(source.id, **dict(body), requester=person, token=token)
        return _respond(request, "forked", fork.id, HTTPStatus.CREATED, source=source.id)

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
        body = await _read_message(request, SendBody)
        options = body.options()
        person = identify_starter(request.state.login)
        session = self._session(request, person, app=options.pop("app"), agent=options.pop("agent"))
        token = self._gatekeeper.make_signer(request.state.login)
        sent = await session.send(options.pop("message"), **options, token=token)
        return _respond(request, "started", sent.id, HTTPStatus.CREATED, status=sent.status, duplicate=sent.duplicate)

    async def close(self, request: Request) -> Response:
        """Close a session of the person who is logged in."""
        body = await _read(request, CloseBody)
        session = self._session(request, identify_starter(request.state.login), app=body.app)
        await session.close()
        return JSONResponse({"session_id": session.given.session_id})

    async def session_events(self, request: Request) -> Response:
        """Return a session's events, starting at `?start=`. Viewers can read other users' sessions with `?user_id=`."""
        params, login = request.query_params, request.state.login
        user = params.get("user_id") or login.subject
        session = self._session(request, user, app=params.get("app") or DEFAULT_APP)
        if not sees_invocation(login, (user,), tenant_of(login)):
            raise UnknownSession(f"There is no session {get_id(request)!r} of {user!r} that you may see.")
        start = parse_number(params.get("start"), "start")
        page = format_events(await session.events(start=start), start)
        return JSONResponse({"session_id": session.given.session_id, **page})

    def _session(self, request: Request, user: str, *, app: str, agent: str = ANY_AGENT) -> Session:
        try:
            names = {"agent": agent, "session_id": get_id(request), "user_id": user, "app": app}
            return self._client.session(**names, tenant=tenant_of(request.state.login))
        except ValueError as error:
            raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidInput", str(error)) from None


def identify_starter(login: Login) -> str:
    """Return the name to record as user and requester. It comes only from the login, never from a request.

    Raises:
        Refused: The person's subject is the default user ID, which identifies nobody.
    """
    if login.verified is not None and login.subject == DEFAULT_USER:
        text = f"Your subject {DEFAULT_USER!r} is the default user ID, which identifies nobody. Use another account."
        raise RequestRefused(HTTPStatus.FORBIDDEN, "NotAllowed", text)
    return login.subject or DEFAULT_USER


def tenant_of(login: Login) -> str | None:
    """Return the tenant of the person who is logged in, or None if the person has none."""
    return (login.verified.tenant or None) if login.verified else None


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
    data = await request.body() or b"{}"
    body = parse(kind, data, InvalidInput, what="The request", send="with the fields that the reference lists")
    if (key := repeated_key(data)) is not None:
        raise InvalidInput(f"The request contains the key {key[:100]!r} twice in the same object. Send it only once.")
    return body


async def _read_message(request: Request, kind: type[MessageType]) -> MessageType:
    """Read a message. If it changes `app:` state, which all users share, check for the role `operator`."""
    body = await _read(request, kind)
    if any(key.startswith("app:") for key in body.state):
        check_role(request.state.login, "operator")
    return body


def _respond(request: Request, event: str, invocation_id: str, code: HTTPStatus, **fields: object) -> Response:
    """Log what the person did, and return the response."""
    log.info(f"invocation.{event}", invocation_id=invocation_id, by=request.state.login.subject, **fields)
    return JSONResponse({"invocation_id": invocation_id, **fields}, code)
