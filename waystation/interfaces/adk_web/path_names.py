"""What the handlers of ADK's routes share: names in paths, and refusals in ADK's form."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, get_type_hints
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.service import RPCError

from waystation.core.contract import DEFAULT_USER
from waystation.web.http_responses import PROBLEM, STATUSES, RequestRefused, make_problem, to_refused
from waystation.web.starter import identify_starter
from waystation.web.typed_routes import EVENTS, HOLD_S, read_body

FormatRefusal = Callable[[RequestRefused], Response]
REFUSALS: tuple[type[Exception], ...] = (RequestRefused, RPCError, *STATUSES)


class AdkRoute:
    """A handler that takes the request and, by name, a `body`. It returns what becomes JSON, or a response."""

    def __init__(self, handle: Callable[..., Awaitable[Any]], format_refusal: FormatRefusal | None = None) -> None:
        self._handle, self._format_refusal = handle, format_refusal or format_adk_refusal
        self._body = get_type_hints(handle).get("body")

    async def __call__(self, request: Request) -> Response:
        """Serve a request, whose path may name the person as `user` or by subject.

        Errors that are none of ours reach the application's handler.
        """
        try:
            async with asyncio.timeout(HOLD_S):
                check_user(request, request.path_params.get("user", DEFAULT_USER))
                values = {"body": await read_body(request, self._body)} if self._body else {}
                reply = await self._handle(request, **values)
        except TimeoutError:
            text = f"The request took longer than {HOLD_S:g} seconds. It may still have an effect; read the session."
            return self._format_refusal(RequestRefused(HTTPStatus.GATEWAY_TIMEOUT, "TookTooLong", text))
        except REFUSALS as error:
            refused = to_refused(error)
            if refused.status == HTTPStatus.ACCEPTED:  # clients of ADK take every 2xx for the result
                refused.status = HTTPStatus.SERVICE_UNAVAILABLE
            return self._format_refusal(refused)
        return reply if isinstance(reply, Response) else JSONResponse(reply)


def format_adk_refusal(refused: RequestRefused) -> Response:
    """Return an error as JSON. Its `detail` is where ADK's server has the message."""
    return JSONResponse(_describe(refused), refused.status, refused.headers, PROBLEM)


def format_stream_refusal(refused: RequestRefused) -> Response:
    """Return an error as a stream with one event, because ADK's front end shows only those."""
    data = json.dumps({"error": refused.message, **_describe(refused)})
    return Response(f"data: {data}\n\n", refused.status, refused.headers, EVENTS)


def _describe(refused: RequestRefused) -> dict[str, Any]:
    return {**make_problem(refused).model_dump(), **refused.details}


def get_name(request: Request, name: str) -> str:
    """Return a name in the path, which the application routes in its escaped form."""
    return unquote(request.path_params[name])


def check_user(request: Request, user: str) -> str:
    """Return the user of a request, which must be `user` or the subject of the person.

    Raises:
        RequestRefused: It is somebody else, whether or not there is such a person.
    """
    if (name := unquote(user)) not in (DEFAULT_USER, identify_starter(request.state.login)):
        text = f"There is no user {name[:100]!r} here. Write {DEFAULT_USER!r} for the person who is logged in."
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownUser", text)
    return name
