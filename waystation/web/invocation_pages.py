"""Serve invocations over HTTP: pages for people, and server-sent events and JSON for programs.

Pages are complete without JavaScript. Streams do not buffer events: each event is read only after the previous event
was sent.
"""

import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

import anyio
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from waystation.client import AgentClient, Invocation, has_search_attributes, is_quotable, stream_events
from waystation.core import (
    HELD,
    MEMO_HELD,
    SEARCH_AGENT,
    SEARCH_STATUS,
    SEARCH_TENANT,
    SEARCH_USER,
    WORKFLOW,
    Event,
    ForeignHistory,
    JsonObject,
    StoreFailed,
)
from waystation.history import collect_attempts
from waystation.presentation import terminal, timeline
from waystation.web.access import Login
from waystation.web.http_responses import Refused, render_page
from waystation.web.limits import Limits
from waystation.web.permissions import is_requester, sees_everything, sees_invocation

log = structlog.get_logger("waystation.web")

STATUS = SearchAttributeKey.for_keyword(SEARCH_STATUS)
MATCHES_NOTHING = "WorkflowId = ''"
LISTED = 30
"""Maximum number of invocations on the start page."""
SHOWN = 1_000
"""Maximum number of events on an invocation's page, which shows the latest events."""
EVENTS = 500
"""Maximum number of events in a JSON response."""
KEEP_ALIVE_S = 15
STALLED_S = 30.0
"""A client that does not read for this long is disconnected. It can resume after the last event that it received."""
RETRY_MS = 2_000
GRACE_S = 1.0
"""Time that streams have to end when the process shuts down."""


class InvocationPages:
    """The pages and event streams for invocations."""

    def __init__(self, client: AgentClient, limits: Limits) -> None:
        self._client, self._limits = client, limits
        self._streams: Counter[str] = Counter()
        """Number of open streams by `Login.owner`."""

    @property
    def open_streams(self) -> int:
        """Number of open streams."""
        return self._streams.total()

    async def check_visible(self, request: Request) -> None:
        """Check that a login may see the invocation in the path: as a viewer, or because the person requested it.

        Raises:
            Refused: No such invocation exists, or the login may not see it. The two cases look the same.
        """
        login: Login = request.state.login
        if sees_everything(login):
            return
        invocation, _ = await self.find(request)
        try:
            input = (await invocation.log()).state.input
        except ForeignHistory:
            input = None
        if input is None or not sees_invocation(login, input.requesters, input.tenant):
            raise _unknown(invocation.id)

    async def index(self, request: Request) -> Response:
        """Serve a list of the latest invocations that the login may see, or redirect to the one in the search field."""
        if id := request.query_params.get("id", "").strip():
            return RedirectResponse(f"/invocations/{quote(id, safe='')}", HTTPStatus.SEE_OTHER)
        login: Login = request.state.login
        query = await self._make_query(login)
        latest = [
            {
                "id": execution.id,
                "status": format_hold(execution) or format_status(execution),
                "began": execution.start_time.timestamp(),
            }
            async for execution in self._client.temporal.list_workflows(query, page_size=LISTED, limit=LISTED)
        ]
        return render_page("index.html", login=login, latest=latest)

    async def _make_query(self, login: Login) -> str:
        """Return the query for the invocations that a login may see. It matches nothing if they cannot be searched."""
        conditions, names = [f"WorkflowType = '{WORKFLOW}'"], list[str]()
        tenant = login.verified.tenant if login.verified else None
        if tenant:
            names.append(tenant)
            conditions.append(f"{SEARCH_TENANT} = '{tenant}'")
        elif tenant is not None:
            # Invocations without any search attributes may belong to a tenant.
            conditions += [f"{SEARCH_TENANT} IS NULL", f"{SEARCH_AGENT} IS NOT NULL"]
        if "viewer" not in login.roles:
            names.append(login.subject)
            conditions.append(f"{SEARCH_USER} = '{login.subject}'")
            if not is_requester(login, (login.subject,)):
                return MATCHES_NOTHING
        is_searchable = sees_everything(login) or await has_search_attributes(self._client.temporal, tenant)
        return " AND ".join(conditions) if is_searchable and all(map(is_quotable, names)) else MATCHES_NOTHING

    async def invocation(self, request: Request) -> Response:
        """Serve a page with the events of an invocation."""
        invocation, described = await self.find(request)
        events = await _read_events(invocation)
        left_out = max(0, len(events) - SHOWN)
        return await self._page(
            request, "invocation.html", described, rows=_rows(events[left_out:]), left_out=left_out, next=len(events)
        )

    async def rows(self, request: Request) -> Response:
        """Serve table rows for up to `SHOWN` events, starting at `?start=`, which an open page adds to its table."""
        start = parse_number(request.query_params.get("start"), "start")
        invocation, _ = await self.find(request)
        return render_page("rows.html", rows=_rows((await _read_events(invocation))[start:][:SHOWN]))

    async def timeline(self, request: Request) -> Response:
        """Serve a page with the timeline of an invocation, which is drawn on the server."""
        invocation, described = await self.find(request)
        try:
            log = await invocation.log()
        except ForeignHistory:
            log = None
        spans: list[timeline.Span] = []
        if log is not None and log.entries_before == 0:
            attempts = {
                activity.activity: activity.count for activity in collect_attempts(await invocation.histories())
            }
            for pending in described.raw_description.pending_activities:
                attempts[pending.activity_id] = pending.attempt
            spans = timeline.build_spans(log, attempts, time.time())
        drawing = timeline.draw(spans, log.state.events if log else ())
        return await self._page(request, "timeline.html", described, drawing=drawing)

    async def _page(
        self, request: Request, template: str, described: WorkflowExecutionDescription, **values: Any
    ) -> Response:
        is_running = described.status is WorkflowExecutionStatus.RUNNING
        held = (await described.memo()).get(MEMO_HELD) if is_running else None
        return render_page(
            template,
            login=request.state.login,
            id=described.id,
            status=format_status(described),
            held=[(hold["since"], terminal.format_hold(hold)) for hold in held or ()],
            **values,
        )

    async def events(self, request: Request) -> Response:
        """Stream events, starting at `?start=` or after the `Last-Event-ID` that a browser sends when it reconnects."""
        start = parse_number(request.query_params.get("start"), "start")
        if last := request.headers.get("last-event-id"):
            start = parse_number(last, "Last-Event-ID") + 1
        partial = request.query_params.get("partial", "0") not in ("", "0", "false")
        invocation, _ = await self.find(request)
        ending = anyio.Event()
        return _StreamResponse(
            self._stream(invocation, start, partial, ending),
            close=self._open_stream(request.state.login),
            ping=KEEP_ALIVE_S,
            sep="\n",
            send_timeout=STALLED_S,
            shutdown_event=ending,
            shutdown_grace_period=GRACE_S,
        )

    def _open_stream(self, login: Login) -> Callable[[], None]:
        """Count an event stream, and return the function to call when it ends.

        Raises:
            Refused: The server, or this person, has too many open streams.
        """
        owner, limit = login.owner, self._limits.streams_per_login if login.browser else self._limits.program_streams
        if self.open_streams >= self._limits.streams:
            text = f"All {self._limits.streams} streams are in use. Try again later."
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", text)
        if self._streams[owner] >= limit:
            text = f"You have {limit} open streams, which is the limit. Close one, then try again."
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "TooMany", text, {"Retry-After": "5"})
        self._streams[owner] += 1

        def close() -> None:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]

        return close

    async def _stream(
        self, invocation: Invocation, start: int, partial: bool, ending: anyio.Event
    ) -> AsyncIterator[ServerSentEvent]:
        try:
            yield ServerSentEvent(comment="events follow", retry=RETRY_MS)
            events = stream_events(invocation, start=start, partial=partial)
            async with aclosing(events), aclosing(_until(ending, events)) as coming:
                async for event in coming:
                    id, kind = (None, "partial") if event.partial else (str(event.index), None)
                    yield ServerSentEvent(_json(event.to_json()), event=kind, id=id)
            if not ending.is_set():
                described = await invocation.handle.describe()
                yield ServerSentEvent(_json({"status": format_status(described)}), event="end")
        except (RPCError, ForeignHistory, StoreFailed) as error:
            # Just end the stream: the client reconnects and resumes after the last event that it received.
            log.warning("stream.broken", invocation_id=invocation.id, error_type=type(error).__name__)

    async def events_json(self, request: Request) -> Response:
        """Serve up to `EVENTS` recorded events as JSON, starting at `?start=`."""
        start = parse_number(request.query_params.get("start"), "start")
        invocation, described = await self.find(request)
        page = format_events((await _read_events(invocation))[start:], start)
        return JSONResponse({"invocation_id": invocation.id, "status": format_status(described), **page})

    async def find(self, request: Request) -> tuple[Invocation, WorkflowExecutionDescription]:
        """Return the invocation that the path names, and its description.

        Raises:
            Refused: No such invocation exists.
        """
        id = get_id(request)
        described = await describe(self._client, id)
        if described is None:
            raise _unknown(id)
        return self._client.invocation(id), described


class _StreamResponse(EventSourceResponse):
    """An event stream that is counted until it ends, even if it never starts."""

    def __init__(self, content: AsyncIterator[ServerSentEvent], *, close: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **options)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def _unknown(id: str) -> Refused:
    text = f"No invocation has the ID {id!r}. An ID is a single path segment: write `/` as %2F."
    return Refused(HTTPStatus.NOT_FOUND, "UnknownInvocation", text)


async def describe(client: AgentClient, invocation_id: str) -> WorkflowExecutionDescription | None:
    """Return the description of an invocation, or None if no invocation has that ID."""
    try:
        described = await client.invocation(invocation_id).handle.describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            return None
        raise
    return described if described.workflow_type == WORKFLOW else None


def get_id(request: Request) -> str:
    """Return the ID in the path, with escapes decoded."""
    return unquote(request.path_params["id"], errors="replace")


def format_hold(execution: WorkflowExecution) -> str | None:
    """Return the status of a held invocation, such as `held:model_unavailable`, or None if it is not held."""
    status = execution.typed_search_attributes.get(STATUS) or ""
    return status if execution.status is WorkflowExecutionStatus.RUNNING and status.startswith(HELD) else None


def format_status(execution: WorkflowExecution) -> str:
    """Return an invocation's status as one word, such as `running`."""
    return execution.status.name.lower() if execution.status is not None else "unknown"


async def _read_events(invocation: Invocation) -> list[Event]:
    try:
        return (await invocation.log()).state.events
    except ForeignHistory as error:
        raise Refused(HTTPStatus.NOT_FOUND, "UnknownInvocation", str(error)) from None


def format_events(events: Sequence[Event], start: int) -> JsonObject:
    """Return the first `EVENTS` of these events as JSON. `start` is the first one's index in the whole list."""
    part = events[:EVENTS]
    return {
        "events": [event.to_json() for event in part],
        "next": start + len(part),
        "more": len(events) > len(part),
    }


def _rows(events: Sequence[Event]) -> list[dict[str, object]]:
    return [{"index": event.index, "time": event.timestamp, "lines": terminal.format_event(event)} for event in events]


async def _until(ending: anyio.Event, events: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
    """Yield events until there are no more or the process shuts down. After a shutdown, the client reconnects."""

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


def parse_number(text: str | None, name: str) -> int:
    """Parse an event number, or return 0 if there is none.

    Raises:
        Refused: The text is not a number of at most nine digits.
    """
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text):
        message = f"{name} is {text[:40]!r}, which is not an event number."
        raise Refused(HTTPStatus.BAD_REQUEST, "InvalidRequest", message)
    return int(text)


def _json(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False)
