"""Invocations over HTTP: pages for people, and events for programs, as server-sent events and as JSON.

Pages are complete without JavaScript. Of a stream nothing is kept for a reader who does not read: the next event is
looked for once the one before is sent.
"""

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

import anyio
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from waystation.client import AgentClient, Invocation, stream_events
from waystation.core import WORKFLOW, Event, ForeignHistory, JsonObject, StoreFailed
from waystation.history import attempts_of
from waystation.presentation import terminal, timeline
from waystation.web.limits import Limits
from waystation.web.responses import Refused, page

log = structlog.get_logger("waystation.web")

LISTED = 30
"""Invocations on the first page."""
SHOWN = 1_000
"""Events on a page; of a longer invocation the last ones."""
EVENTS = 500
"""Events in one answer of JSON."""
KEEP_ALIVE_S = 15
STALLED_S = 30.0
"""A reader who takes nothing for so long is cut off; it resumes after what it has."""
RETRY_MS = 2_000
GRACE_S = 1.0
"""How long streams may take to end when the process does."""


class InvocationPages:
    """The pages and the streams of invocations."""

    def __init__(self, client: AgentClient, limits: Limits) -> None:
        self._client, self._limits = client, limits
        self.open_streams = 0
        """How many streams are being read."""

    def routes(self) -> list[Route]:
        """Return the pages."""
        return [
            Route("/", self._index),
            Route("/invocations/{id}", self._invocation),
            Route("/invocations/{id}/rows", self._rows),
            Route("/invocations/{id}/timeline", self._timeline),
            Route("/invocations/{id}/events", self._events),
            Route("/invocations/{id}/events.json", self._events_json),
        ]

    async def _index(self, request: Request) -> Response:
        """Answer with the latest invocations."""
        wanted = request.query_params.get("id", "").strip()
        if wanted:
            return RedirectResponse(f"/invocations/{quote(wanted, safe='')}", HTTPStatus.SEE_OTHER)
        query = f"WorkflowType = '{WORKFLOW}'"
        latest = [
            {"id": execution.id, "status": status_of(execution), "began": execution.start_time.timestamp()}
            async for execution in self._client.temporal.list_workflows(query, page_size=LISTED, limit=LISTED)
        ]
        return page("index.html", login=request.state.login, latest=latest)

    async def _invocation(self, request: Request) -> Response:
        """Answer with what happened in an invocation."""
        invocation, described = await self._find(request)
        events = await _recorded(invocation)
        left_out = max(0, len(events) - SHOWN)
        return self._page(
            request, "invocation.html", described, rows=_rows(events[left_out:]), left_out=left_out, next=len(events)
        )

    async def _rows(self, request: Request) -> Response:
        """Answer with the rows of the events from `?start=` on, for a page that grows."""
        start = _number(request.query_params.get("start"), "start")
        invocation, _ = await self._find(request)
        return page("rows.html", rows=_rows((await _recorded(invocation))[start:][:SHOWN]))

    async def _timeline(self, request: Request) -> Response:
        """Answer with the timeline of an invocation, drawn here."""
        invocation, described = await self._find(request)
        try:
            log = await invocation.log()
        except ForeignHistory:
            log = None
        spans: list[timeline.Span] = []
        if log is not None and log.entries_before == 0:
            attempts = {each.activity: each.count for each in attempts_of(await invocation.histories())}
            for pending in described.raw_description.pending_activities:
                attempts[pending.activity_id] = pending.attempt
            spans = timeline.spans(log, attempts, time.time())
        picture = timeline.picture(spans, log.state.events if log else ())
        return self._page(request, "timeline.html", described, picture=picture)

    def _page(
        self, request: Request, template: str, described: WorkflowExecutionDescription, **values: Any
    ) -> Response:
        status = status_of(described)
        return page(
            template, login=request.state.login, id=described.id, status=status, running=status == "running", **values
        )

    async def _events(self, request: Request) -> Response:
        """Answer with a stream: from `?start=`, or after the header `Last-Event-ID`, which browsers send."""
        last = request.headers.get("last-event-id")
        start = _number(last, "Last-Event-ID") + 1 if last else _number(request.query_params.get("start"), "start")
        partial = request.query_params.get("partial", "0") not in ("", "0", "false")
        invocation, _ = await self._find(request)
        if self.open_streams >= self._limits.streams:
            text = f"{self._limits.streams} streams are open; try again later."
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", text)
        ending = anyio.Event()
        return EventSourceResponse(
            self._stream(invocation, start, partial, ending),
            ping=KEEP_ALIVE_S,
            sep="\n",
            send_timeout=STALLED_S,
            shutdown_event=ending,
            shutdown_grace_period=GRACE_S,
        )

    async def _stream(
        self, invocation: Invocation, start: int, partial: bool, ending: anyio.Event
    ) -> AsyncIterator[ServerSentEvent]:
        self.open_streams += 1
        try:
            yield ServerSentEvent(comment="events follow", retry=RETRY_MS)
            events = stream_events(invocation, start=start, partial=partial)
            async with aclosing(events), aclosing(_until(ending, events)) as coming:
                async for event in coming:
                    id, kind = (None, "partial") if event.partial else (str(event.index), None)
                    yield ServerSentEvent(_json(event.to_json()), event=kind, id=id)
            if not ending.is_set():
                described = await invocation.handle.describe()
                yield ServerSentEvent(_json({"status": status_of(described)}), event="end")
        except (RPCError, ForeignHistory, StoreFailed) as error:
            # The reader comes back by itself, and after what it has.
            log.warning("stream.broken", invocation_id=invocation.id, error_type=type(error).__name__)
        finally:
            self.open_streams -= 1

    async def _events_json(self, request: Request) -> Response:
        """Answer with the events that are recorded by now, from `?start=` on."""
        start = _number(request.query_params.get("start"), "start")
        invocation, described = await self._find(request)
        events = (await _recorded(invocation))[start:]
        shown = events[:EVENTS]
        return JSONResponse(
            {
                "invocation_id": invocation.id,
                "status": status_of(described),
                "events": [event.to_json() for event in shown],
                "next": start + len(shown),
                "more": len(events) > len(shown),
            }
        )

    async def _find(self, request: Request) -> tuple[Invocation, WorkflowExecutionDescription]:
        """Return the invocation that a path names.

        Raises:
            Refused: There is none.
        """
        id = id_in_path(request)
        described = await describe(self._client, id)
        if described is None:
            text = f"There is no invocation {id!r}. In a path its id is one segment: `/` is written %2F."
            raise Refused(HTTPStatus.NOT_FOUND, "UnknownInvocation", text)
        return self._client.invocation(id), described


async def describe(client: AgentClient, invocation_id: str) -> WorkflowExecutionDescription | None:
    """Return what the server says of an invocation; None when there is none of that id."""
    try:
        described = await client.invocation(invocation_id).handle.describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            return None
        raise
    return described if described.workflow_type == WORKFLOW else None


def id_in_path(request: Request) -> str:
    """Return the id that a path has as one segment."""
    return unquote(request.path_params["id"], errors="replace")


def status_of(execution: WorkflowExecution) -> str:
    """Return the state of an invocation in one word, such as `running`."""
    return execution.status.name.lower() if execution.status is not None else "unknown"


async def _recorded(invocation: Invocation) -> list[Event]:
    try:
        return (await invocation.log()).state.events
    except ForeignHistory as error:
        raise Refused(HTTPStatus.NOT_FOUND, "UnknownInvocation", str(error)) from None


def _rows(events: Sequence[Event]) -> list[dict[str, object]]:
    """Return events as a page shows them: when, and line by line what happened."""
    return [{"index": event.index, "time": event.timestamp, "lines": terminal.lines_of(event)} for event in events]


async def _until(ending: anyio.Event, events: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
    """Yield events until the process is to end: a reader then sees the end of the stream, and comes back by itself."""

    async def stop(scope: anyio.CancelScope) -> None:
        await ending.wait()
        scope.cancel()

    while True:
        event = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop, tasks.cancel_scope)
            event = await anext(events, None)
            tasks.cancel_scope.cancel()
        if event is None:
            return
        yield event


def _number(text: str | None, name: str) -> int:
    """Return the number of an event that a request names; 0 when it names none.

    Raises:
        Refused: It is no such number.
    """
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text):
        message = f"{name} is {text[:40]!r}; give a number of an event."
        raise Refused(HTTPStatus.BAD_REQUEST, "InvalidRequest", message)
    return int(text)


def _json(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False)
