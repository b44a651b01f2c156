"""Bodies and names in requests to ADK's routes, and refusals in ADK's form, which all handlers share."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, ClassVar, get_type_hints
from urllib.parse import unquote

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.service import RPCError

from waystation.core.contract import DEFAULT_USER
from waystation.core.payload import JsonObject
from waystation.web.http_responses import PROBLEM, STATUSES, RequestRefused, make_problem, to_refused
from waystation.web.invocation_pages import format_json
from waystation.web.starter import identify_starter
from waystation.web.typed_routes import EVENTS, HOLD_S, Body, read_body

REFUSALS: tuple[type[Exception], ...] = (RequestRefused, RPCError, *STATUSES)


class AdkBody(Body):
    """The body of a request. Names are in camel case or snake case, and unknown ones are ignored, as in ADK 2.13."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class RunBody(AdkBody):
    """A message for an agent, or responses to calls that wait."""

    app_name: str
    user_id: str
    session_id: str
    new_message: JsonObject | None = None
    streaming: bool = False
    state_delta: JsonObject | None = None
    invocation_id: str | None = None
    """Without a message: the invocation to follow."""
    custom_metadata: JsonObject | None = None


class CreateBody(AdkBody):
    """A session to create."""

    session_id: str | None = None
    state: JsonObject | None = None
    events: list[JsonObject] | None = None


class CreateNamedBody(Body):
    """The state of the session to create, without another object around it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


class StateDeltaBody(AdkBody):
    """A change of a session's state."""

    state_delta: JsonObject


class SavedPartBody(AdkBody):
    """A file to save."""

    filename: str = Field(min_length=1, max_length=500)
    artifact: JsonObject
    """A genai Part with text or inline data."""


class AdkRoute:
    """A handler that takes the request and, by name, a `body`. It returns what becomes JSON, or a response."""

    def __init__(self, handle: Callable[..., Awaitable[Any]]) -> None:
        hints = get_type_hints(handle)
        self._handle, self._body, self._streams = handle, hints.get("body"), hints["return"] is Response

    async def __call__(self, request: Request) -> Response:
        """Serve a request, whose path may name the person as `user` or by subject."""
        try:
            async with asyncio.timeout(HOLD_S):
                check_user(request, request.path_params.get("user", DEFAULT_USER))
                values = {"body": await read_body(request, self._body)} if self._body else {}
                reply = await self._handle(request, **values)
        except TimeoutError:
            text = f"The request took longer than {HOLD_S:g} seconds. It may still have an effect; read the session."
            return self._refuse(RequestRefused(HTTPStatus.GATEWAY_TIMEOUT, "TookTooLong", text))
        except REFUSALS as error:
            return self._refuse(to_refused(error))
        return reply if isinstance(reply, Response) else JSONResponse(reply)

    def _refuse(self, refused: RequestRefused) -> Response:
        """Return an error as JSON, whose `detail` is where ADK's server has the message."""
        if refused.status == HTTPStatus.ACCEPTED:  # clients of ADK take every 2xx for the result
            refused.status = HTTPStatus.SERVICE_UNAVAILABLE
        content = {**make_problem(refused).model_dump(), **refused.details}
        if self._streams:  # ADK's front end shows only errors in a stream
            data = format_json({"error": refused.message, **content})
            return Response(f"data: {data}\n\n", refused.status, refused.headers, EVENTS)
        return JSONResponse(content, refused.status, refused.headers, PROBLEM)


def get_name(request: Request, name: str) -> str:
    """Return a name in the path, which the application routes in its escaped form."""
    return unquote(request.path_params[name])


def check_user(request: Request, user: str) -> None:
    """Check that the user of a request is `user`, or the subject of the person.

    Raises:
        RequestRefused: It is somebody else, whether or not there is such a person.
    """
    if unquote(user) not in (DEFAULT_USER, identify_starter(request.state.login)):
        text = f"There is no such user here. Write {DEFAULT_USER!r} for the person who is logged in."
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownUser", text)
