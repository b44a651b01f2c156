"""ADK's routes that send a message to an agent, or answer its calls, and return the events that follow."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from google.genai import types
from pydantic import ValidationError
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from waystation.client import Invocation, Session, new_events, stream_logs
from waystation.core import contract, ids
from waystation.core.errors import InvalidInput, WaystationError
from waystation.core.log import question_of
from waystation.core.payload import JsonObject, encode
from waystation.history import describe_workflow
from waystation.interfaces.adk_web.adk_events import parse_request_id, to_adk_event
from waystation.interfaces.adk_web.adk_routes import RunBody, check_user
from waystation.interfaces.adk_web.adk_sessions import AdkSessions
from waystation.runners.session_turns import is_parked, to_answer
from waystation.web.call_answers import CallView, unknown_call
from waystation.web.call_api import AnswerBody, Unconfirmed
from waystation.web.http_responses import RequestRefused
from waystation.web.invocation_pages import format_json
from waystation.web.paths import format_call_path, root
from waystation.web.session_api import CONFIRM_WITHIN
from waystation.web.typed_routes import read_key
from waystation.web.web_services import WebServices


@dataclass(frozen=True, slots=True)
class FollowedTurn:
    """The part of an invocation that one request follows."""

    invocation: Invocation
    start: int
    """The index of the first event to return."""
    length: int = 0
    """The number of entries that the log had before the request."""


class AdkRuns:
    """The handlers of `/run` and `/run_sse`."""

    def __init__(self, services: WebServices, sessions: AdkSessions) -> None:
        self._services, self._sessions = services, sessions

    async def run(self, request: Request, body: RunBody) -> list[JsonObject]:
        """Return the events up to the agent's reply, or to a call that waits for a person."""
        turn = await self._begin(request, body)
        with self._services.invocations.open_stream(request.state.login):
            async with aclosing(follow(turn, partial=False)) as events:
                return [event async for event in events]

    async def stream(self, request: Request, body: RunBody) -> Response:
        """Stream these events as they are recorded and, with `streaming`, text while it is generated.

        If the client disconnects, the agent continues.
        """
        turn = await self._begin(request, body)
        return self._services.invocations.respond(request.state.login, self._stream(turn, body.streaming))

    async def _stream(self, turn: FollowedTurn, partial: bool) -> AsyncGenerator[ServerSentEvent]:
        try:
            async with aclosing(follow(turn, partial=partial)) as events:
                async for event in events:
                    for piece in split_artifacts(event):
                        yield ServerSentEvent(format_json(piece))
        except (RPCError, WaystationError):
            text = "The connection to the agent was lost. It continues; load the session again to see what it did."
            yield ServerSentEvent(format_json({"error": text}))

    async def _begin(self, request: Request, body: RunBody) -> FollowedTurn:
        """Send the message, or the answers.

        Raises:
            RequestRefused: The session does not exist, or a call cannot be answered.
            InvalidInput: The message is not valid.
            SessionRefused: The session does not accept the message.
        """
        check_user(request, body.user_id)
        self._services.invocations.open_stream(request.state.login).close()  # before the message counts
        session = await self._sessions.find(request, body.app_name, body.session_id)
        message = {**(body.new_message or {}), "role": "user"}
        responses = parse_responses(message)
        if responses:
            if body.state_delta:
                raise InvalidInput("A waiting invocation keeps its state. Send `stateDelta` with a new message.")
            return await self._answer(request, session, responses)
        if message.get("parts"):
            sent = await self._services.starter.send(
                request.state.login,
                session,
                message,
                message_id=read_key(request),
                state=body.state_delta,
                metadata=body.custom_metadata,
                streaming=body.streaming,
                create=False,
                confirm_within=CONFIRM_WITHIN,
            )
            return FollowedTurn(sent, 1)
        client, id = self._services.client, body.invocation_id or ""
        if not is_turn(session, id) or await describe_workflow(client.temporal, id) is None:
            raise InvalidInput("The request has no `newMessage`, and no `invocationId` of this session to follow.")
        return FollowedTurn(client.invocation(id), 0)

    async def _answer(
        self, request: Request, session: Session, responses: Sequence[types.FunctionResponse]
    ) -> FollowedTurn:
        """Answer the calls of one invocation. Nothing is sent unless all of them can be answered.

        Calls of called agents are not events of the session, so they are answered elsewhere.
        """
        login, found = request.state.login, list[tuple[CallView, AnswerBody]]()
        self._services.approvals.answers.check_count(responses)
        for response in responses:
            approval_id, number = parse_request_id(response.id or "")
            if not is_turn(session, approval_id.rpartition("/")[0]):
                raise unknown_call(response.id or "")
            view = await self._services.approvals.answers.view(login, approval_id)
            if len(responses) > 1 and view.standing != "open":
                text = f"{view.decision} Nothing was sent. Send the other function responses without this one."
                raise RequestRefused(HTTPStatus.CONFLICT, "AlreadyAnswered", text)
            found.append((view, make_answer(response, view, number, wakes=response is responses[-1])))
        if len({view.log.invocation_id for view, _ in found}) > 1:
            raise InvalidInput("The function responses belong to several invocations. Send a message for each one.")
        for view, answer in found:
            # Its events show the arguments as the model chose them, and not what an approver has changed since.
            is_edited = view.standing == "open" and view.state.requested is not None
            if is_edited or (view.pending.policy and view.pending.policy.digest):
                page = f"{root()}{format_call_path(view.id)}"
                text = f"A function response does not prove what was shown. Answer the call at {page}"
                raise RequestRefused(HTTPStatus.CONFLICT, "DigestMismatch", text)
            self._services.approvals.answers.check(login, view, answer.action)
        problems = list[RequestRefused]()
        for view, answer in found:  # the last answer wakes the agent, so it is sent even if another one came too late
            try:
                outcome = await self._services.calls.answer_one(login, view, answer, None)
            except RequestRefused as refused:
                problems.append(refused)
            else:
                if isinstance(outcome, Unconfirmed):
                    status = HTTPStatus.SERVICE_UNAVAILABLE
                    problems.append(RequestRefused(status, "AnswerUnconfirmed", outcome.detail))
        if problems:
            raise problems[0]
        recorded = found[0][0].log
        return FollowedTurn(
            self._services.client.invocation(recorded.invocation_id), recorded.state.event_count, recorded.length
        )


def parse_responses(message: JsonObject) -> list[types.FunctionResponse]:
    """Return the function responses in a message.

    Raises:
        InvalidInput: They are not valid, or there are other parts, too.
    """
    text = "`newMessage` must be a genai Content: an object with a list of `parts`."
    parts = message.get("parts") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InvalidInput(text)
    found = [each for part in parts if (each := part.get("functionResponse") or part.get("function_response"))]
    if found and len(found) < len(parts):
        text = "Function responses answer calls, while other parts start an invocation. Send them separately."
        raise InvalidInput(text)
    try:
        return [types.FunctionResponse.model_validate_json(encode(each)) for each in found]
    except (TypeError, ValidationError):
        raise InvalidInput(text) from None


def is_turn(session: Session, invocation_id: str) -> bool:
    """Return whether an invocation handles a message of a session. Those of called agents do not."""
    above, _, number = invocation_id.rpartition("/")
    return above == session.id and number.isdecimal()


def make_answer(response: types.FunctionResponse, view: CallView, number: str, *, wakes: bool) -> AnswerBody:
    """Return the answer that a function response means. `number` is that of the event with the request.

    Raises:
        RequestRefused: The call made no such request.
        InvalidInput: It contains a credential, or neither confirms nor rejects the call.
    """
    requests = [event.id for event in view.log.state.events if is_request(event, view.state.id)]
    asked = f"{view.log.invocation_id}/e{number}"
    if (asked in requests) != str(response.name).startswith("adk_request_"):
        raise unknown_call(response.id or "")
    question = 2 * requests.index(asked) + 1 if number else question_of(view.state)
    try:
        action, fields = to_answer(response, wakes=wakes)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    return AnswerBody(action=action, question=question, **fields)


def is_request(event: contract.Event, call_id: str) -> bool:
    """Return whether an event asks for a confirmation or a credential for a call."""
    return any(call["id"] != call_id == ids.requesting_call(call["id"]) for call in event.function_calls())


async def follow(turn: FollowedTurn, *, partial: bool) -> AsyncGenerator[JsonObject]:
    """Yield the events of an invocation in ADK's form, until it has ended or waits for a person.

    The messages and answers of people are left out, because their clients have them, and so is what ADK does not have:
    summaries, and the ends of partial texts.
    """
    start = turn.start
    async with aclosing(stream_logs(turn.invocation, partial=partial)) as logs:
        async for found, pieces in logs:
            events = new_events(found, start, pieces)
            start = max(start, len(found.state.events))
            is_over = found.state.outcome.ended or (found.length > turn.length and is_parked(found))
            for event in events:  # the log may grow while the client handles an event
                is_marker = event.actions.compaction or (event.partial and not event.content)
                if event.author != "user" and not is_marker:
                    yield to_adk_event(event)
            if is_over:
                return


def split_artifacts(event: JsonObject) -> list[JsonObject]:
    """Return an event as ADK's server streams it: files after the content, because its front end shows them twice."""
    files = event["actions"].get("artifactDelta")
    if not files or not (event.get("content") or {}).get("parts"):
        return [event]
    content = {**event, "actions": {**event["actions"], "artifactDelta": {}}}
    return [content, {key: value for key, value in event.items() if key != "content"}]


async def refuse_live(_request: Request) -> Any:
    """Refuse audio and video.

    Raises:
        RequestRefused: Always.
    """
    text = "Agents of Waystation do not process live audio and video. Send messages to `/run_sse`."
    raise RequestRefused(HTTPStatus.NOT_IMPLEMENTED, "NotSupported", text)
