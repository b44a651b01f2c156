"""Events of an invocation as server-sent events, and as JSON.

Nothing is kept for a reader who does not read: the next event is looked for once the one before is sent.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from urllib.parse import unquote

import anyio
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from temporalio.client import WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from waystation.client import AgentClient, Invocation, stream_events
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.event import Event
from waystation.core.payload import JsonObject
from waystation.core.wire import WORKFLOW

log = structlog.get_logger("waystation.web")

MAX_STREAMS = 200
"""Streams at a time; each holds the log of its invocation."""
PAGE = 500
"""Events in one answer of JSON."""
KEEP_ALIVE_S = 15
STALLED_S = 30.0
"""A reader who takes nothing for so long is cut off; it resumes after what it has."""
RETRY_MS = 2_000
GRACE_S = 1.0
"""How long streams may take to end when the process does."""


class Refused(Exception):
    """A request cannot be answered; it is told as JSON, or on a page."""

    def __init__(self, status: HTTPStatus, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.kind, self.message = status, kind, message
        busy = {"Retry-After": "5"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        self.headers = headers or busy
        super().__init__(message)

    def response(self) -> Response:
        """Return it as JSON."""
        return JSONResponse({"error": {"type": self.kind, "message": self.message}}, self.status, self.headers)


def unreachable(error: RPCError | StoreFailed) -> Refused:
    """Return what it means to a reader that what there is to show cannot be had."""
    if isinstance(error, StoreFailed):
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "StoreFailed", str(error))
    name = error.status.name
    if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        text = f"The Temporal server does not let this server in ({name}); whoever runs it has to see to that."
    else:
        text = f"The Temporal server does not answer ({name}). What waits there goes on waiting; try again later."
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "NoServer", text)


class Streams:
    """Answers for the events of invocations."""

    def __init__(self, client: AgentClient, *, max_streams: int = MAX_STREAMS) -> None:
        self._client = client
        self._free = max_streams
        self._max = max_streams

    @property
    def open(self) -> int:
        """How many streams are being read."""
        return self._max - self._free

    async def events(self, request: Request) -> Response:
        """Answer with a stream: from `?start=`, or after the header `Last-Event-ID`, which browsers send."""
        last = request.headers.get("last-event-id")
        start = number_of(last, "Last-Event-ID") + 1 if last else number_of(request.query_params.get("start"), "start")
        partial = request.query_params.get("partial", "0") not in ("", "0", "false")
        invocation, _ = await found(self._client, request)
        if self._free <= 0:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", f"{self._max} streams are open; try again later.")
        ending = anyio.Event()
        return EventSourceResponse(
            self._sent(invocation, start, partial, ending),
            ping=KEEP_ALIVE_S,
            sep="\n",
            send_timeout=STALLED_S,
            shutdown_event=ending,
            shutdown_grace_period=GRACE_S,
        )

    async def _sent(
        self, invocation: Invocation, start: int, partial: bool, ending: anyio.Event
    ) -> AsyncIterator[ServerSentEvent]:
        self._free -= 1
        try:
            yield ServerSentEvent(comment="events follow", retry=RETRY_MS)
            events = stream_events(invocation, start=start, partial=partial)
            async with aclosing(events), aclosing(_before(ending, events)) as coming:
                async for event in coming:
                    if event.partial:
                        yield ServerSentEvent(_json(event.to_json()), event="partial")
                    else:
                        yield ServerSentEvent(_json(event.to_json()), id=str(event.index))
            if not ending.is_set():
                described = await invocation.handle.describe()
                yield ServerSentEvent(_json({"status": status_of(described)}), event="end")
        except (RPCError, ForeignHistory, StoreFailed) as error:
            # The reader comes back by itself, and after what it has.
            log.warning("stream.broken", invocation_id=invocation.id, error_type=type(error).__name__)
        finally:
            self._free += 1

    async def listed(self, request: Request) -> Response:
        """Answer with the events that are recorded by now, from `?start=` on."""
        start = number_of(request.query_params.get("start"), "start")
        invocation, described = await found(self._client, request)
        events = (await recorded(invocation))[start:]
        shown = events[:PAGE]
        return JSONResponse(
            {
                "invocation_id": invocation.id,
                "status": status_of(described),
                "events": [event.to_json() for event in shown],
                "next": start + len(shown),
                "more": len(events) > len(shown),
            }
        )


async def recorded(invocation: Invocation) -> list[Event]:
    """Return the events recorded by now.

    Raises:
        Refused: It is no invocation.
    """
    try:
        return (await invocation.log()).events
    except ForeignHistory as error:
        raise Refused(HTTPStatus.NOT_FOUND, "UnknownInvocation", str(error)) from None


async def found(client: AgentClient, request: Request) -> tuple[Invocation, WorkflowExecutionDescription]:
    """Return the invocation that a path names.

    Raises:
        Refused: There is none, or the server does not say.
    """
    id = unquote(request.path_params["id"], errors="replace")
    invocation = client.invocation(id)
    try:
        described = await invocation.handle.describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise _unknown(id) from None
        raise
    if described.workflow_type != WORKFLOW:
        raise _unknown(id)
    return invocation, described


def status_of(described: WorkflowExecutionDescription) -> str:
    """Return the state of an invocation in one word, such as `running`."""
    return described.status.name.lower() if described.status is not None else "unknown"


async def _before(ending: anyio.Event, events: AsyncIterator[Event]) -> AsyncGenerator[Event]:
    """Yield events until the process is to end: a reader is then told that this was all, and comes back by itself."""
    end = asyncio.ensure_future(ending.wait())
    coming: asyncio.Future[Event] | None = None
    try:
        while not ending.is_set():
            coming = asyncio.ensure_future(anext(events))
            await asyncio.wait((coming, end), return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                try:
                    event = coming.result()
                except StopAsyncIteration:
                    return
                yield event
    finally:
        for waited in (end, coming):
            if waited is not None:
                waited.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await waited


def _unknown(id: str) -> Refused:
    text = f"There is no invocation {id!r}. In a path its id is one segment: `/` is written %2F."
    return Refused(HTTPStatus.NOT_FOUND, "UnknownInvocation", text)


def number_of(text: str | None, name: str) -> int:
    """Return the number of an event that a request names; 0 when it names none.

    Raises:
        Refused: It is no such number.
    """
    if text is None or text == "":
        return 0
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        shown = text[:40]
        raise Refused(HTTPStatus.BAD_REQUEST, "InvalidRequest", f"{name} is {shown!r}; give a number of an event.")
    return int(text)


def _json(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False)
