"""Routes of the JSON API: validation, response and document come from the types of the handler.

A handler takes the request and, by name, a `body`, a `query` and the idempotency `key`. It returns a `ReplyBody`, or a
`Response` for other content than JSON.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from waystation.core.errors import InvalidInput
from waystation.core.payload import Recorded, describe_faults, parse, repeated_key
from waystation.web.http_responses import RequestRefused
from waystation.web.list_query import ListQuery
from waystation.web.logins import Login

HOLD_S = 55.0
"""How long a request may take. Many proxies end requests after 60 s."""
JSON = "application/json"
EVENTS = "text/event-stream"
KEY_HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 200
KEY_PATTERN = r"^[!-~]([ -~]*[!-~])?$"
"""Printable characters of ASCII, because clients encode others differently. HTTP removes spaces at both ends."""


class Body(Recorded):
    """The body of a request. Unknown fields are rejected, so that a misspelled limit is not silently ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Query(Body):
    """The parameters of a request."""


class WaitQuery(Query):
    """How long to hold the request."""

    wait_s: Annotated[float, Field(ge=0, le=HOLD_S - 5)] = 0
    """How many seconds to wait for a change. The response then contains what there is."""


class ReplyBody(BaseModel):
    """The body of a response."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, use_attribute_docstrings=True)


BodyType = TypeVar("BodyType", bound=Body)


class TypedRoute:
    """A handler whose parameters are validated, and which describes itself to the document."""

    def __init__(
        self,
        handle: Callable[..., Awaitable[Any]],
        *,
        codes: tuple[HTTPStatus, ...] = (HTTPStatus.OK,),
        media: str = JSON,
        data: type[ReplyBody] | None = None,
    ) -> None:
        """Read the types of a handler.

        Args:
            handle: The handler.
            codes: The statuses of its responses. The first is the usual one; see `set_status` for others.
            media: The content type of the response.
            data: For a stream: the data of its events.
        """
        hints = get_type_hints(handle, include_extras=True)
        self.handle, self.codes, self.media = handle, codes, media
        self.body: type[Body] | None = hints.get("body")
        self.query: type[Query] | type[ListQuery] | None = hints.get("query")
        self.is_keyed = "key" in hints
        self.data = None if data is None else TypeAdapter(data)
        self.reply: TypeAdapter[Any] | None = None if hints["return"] is Response else TypeAdapter(hints["return"])

    async def __call__(self, request: Request) -> Response:
        """Serve a request.

        Raises:
            Refused: A cookie came from an unknown page, a parameter is invalid, or the request took too long.
            InvalidInput: The body is invalid.
        """
        check_same_origin(request)
        values: dict[str, Any] = {}
        if self.query is not None or request.query_params:
            values["query"] = parse_query(self.query or Query, request.query_params)
        if self.is_keyed:
            values["key"] = read_key(request)
        if self.body is not None:
            values["body"] = await read_body(request, self.body)
        try:
            async with asyncio.timeout(HOLD_S):
                reply = await self.handle(request, **values)
        except TimeoutError:
            text = (
                f"The request took longer than {HOLD_S:g} seconds. It may still have an effect; read the object again."
            )
            raise RequestRefused(HTTPStatus.GATEWAY_TIMEOUT, "TookTooLong", text) from None
        if self.reply is None:
            return cast(Response, reply)  # the annotation of the handler says so
        code = getattr(request.state, "code", self.codes[0])
        return Response(self.reply.dump_json(reply), code, media_type=JSON)


def set_status(request: Request, code: HTTPStatus) -> None:
    """Set the status of the response, which must be one of the `codes` of the route."""
    request.state.code = code


def check_same_origin(request: Request) -> None:
    """Check that a change with a cookie comes from this server's pages. The guard has refused other sites.

    Raises:
        Refused: The browser does not say which page sent the request.
    """
    login: Login = request.state.login
    is_change = request.method not in ("GET", "HEAD")
    if is_change and login.browser and not {"origin", "sec-fetch-site"} & set(request.headers):
        text = "A request with a cookie has to come from a page of this server. Programs send an access token instead."
        raise RequestRefused(HTTPStatus.FORBIDDEN, "ForeignForm", text)


def parse_query(kind: type[Query] | type[ListQuery], params: Mapping[str, str]) -> Query | ListQuery:
    """Parse the parameters of a request.

    Raises:
        Refused: A parameter is unknown or invalid.
    """
    if issubclass(kind, ListQuery):
        return kind.parse(params, strict=True)
    try:
        return kind.model_validate(dict(params))
    except ValidationError as error:
        text = f"The parameters are invalid: {describe_faults(error)}."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text) from None


async def read_body(request: Request, kind: type[BodyType]) -> BodyType:
    """Read the body of a request, which may be empty if no field is required.

    Raises:
        InvalidInput: The body is not JSON, or has an invalid, unknown or repeated field.
    """
    data = await request.body() or b"{}"
    body = parse(kind, data, InvalidInput, what="The request", send="with the fields that the reference lists")
    if (key := repeated_key(data)) is not None:
        raise InvalidInput(f"The request contains the key {key[:100]!r} twice in the same object. Send it only once.")
    return body


def read_key(request: Request) -> str | None:
    """Return the idempotency key of a request, or None.

    Raises:
        RequestRefused: It has other characters, or too many.
    """
    key = request.headers.get(KEY_HEADER)
    if key is not None and not (len(key) <= MAX_KEY_CHARS and re.fullmatch(KEY_PATTERN, key)):
        text = f"{KEY_HEADER} must have 1 to {MAX_KEY_CHARS} printable characters of ASCII."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text)
    return key
