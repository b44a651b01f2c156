"""Serve invocations over HTTP: pages for people, and server-sent events and JSON for programs.

Pages are complete without JavaScript. Streams do not buffer events: each event is read only after the previous event
was sent.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import anyio
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.event import ensure_bytes
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from waystation.approvers import sees_everything, sees_invocation
from waystation.client import AgentClient, Invocation, read_entry, stream_events
from waystation.client.invocation_description import read_invocation_input
from waystation.core.contract import WORKFLOW, Event, InvocationInput
from waystation.core.errors import ForeignHistory, StoreFailed, UnknownInvocation
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.presentation import timeline
from waystation.presentation.html import View
from waystation.replay import Recording, Report
from waystation.replay import report as create_report
from waystation.replay.invocation_report import Excerpt, number_events
from waystation.web.forms import read_form
from waystation.web.http_responses import RequestRefused, redirect, render_page
from waystation.web.invocation_details import UNKNOWN
from waystation.web.invocation_list_page import InvocationListPage
from waystation.web.invocation_overview import load_overview, make_path
from waystation.web.limits import Limits
from waystation.web.logins import Login
from waystation.web.paths import root
from waystation.web.shared_reads import SharedReads
from waystation.web.turn_views import HEAD, TAIL

log = structlog.get_logger("waystation.web")

SHOWN = 1_000
"""Maximum number of events on an invocation's page, which shows the latest events."""
EVENTS = 500
"""Maximum number of events in a JSON response."""
KEEP_ALIVE_S = 15
STALLED_S = 30.0
"""A client that does not read for this long is disconnected. It can resume after the last event that it received."""
RETRY_MS = 2_000
ACTIONS = {"stop": "cancel_requested", "retry": "retried", "give-up": "given_up"}
"""Actions that people can take on the page of an invocation, each with the name of the log event."""
NOTICES = {
    "stop": "The cancellation was requested. It takes effect when a worker is running and the tools have ended.",
    "retry": "The next attempt starts now.",
    "give-up": "The held calls were given up.",
    "nothing": "Nothing was held or waiting for its next attempt.",
}
MESSAGES = View(longest=(HEAD, TAIL))
"""Shows the events of a conversation."""
GRACE_S = 1.0
"""Time that streams have to end when the process shuts down."""


Find = Callable[[Request], Awaitable[tuple[Invocation, WorkflowExecutionDescription]]]
"""Finds the invocation that the path of a request names."""


class VisibleInvocation(NamedTuple):
    """An invocation that a person may see."""

    invocation: Invocation
    described: WorkflowExecutionDescription
    log: Log
    input: InvocationInput


class InvocationPages:
    """The pages and event streams for invocations."""

    def __init__(
        self, client: AgentClient, limits: Limits, reads: SharedReads, *, temporal_ui: str | None = None
    ) -> None:
        self._client, self._limits, self._reads = client, limits, reads
        self._ui = temporal_ui
        self.list, self.actions = InvocationListPage(client, reads), InvocationActions(client, self.find)
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
        if not sees_everything(login):
            await view_invocation(self._client, login, get_id(request))

    async def invocation(self, request: Request) -> Response:
        """Serve a page with the events of an invocation."""
        invocation, described = await self.find(request)
        log = await _read_log(invocation)
        events = log.state.events
        left_out = max(0, len(events) - SHOWN)
        rows = number_events(events[left_out:])
        return await self._page(
            request, "conversation.html", described, log, rows=rows, left_out=left_out, view=MESSAGES
        )

    async def rows(self, request: Request) -> Response:
        """Serve table rows for up to `SHOWN` events, starting at `?start=`, which an open page adds to its table."""
        start = parse_number(request.query_params.get("start"), "start")
        invocation, _ = await self.find(request)
        events = (await _read_log(invocation)).state.events
        can_fork = "operator" in request.state.login.roles
        rows, place = number_events(events[start:][:SHOWN]), root() + make_path(invocation.id)
        return render_page("rows.html", rows=rows, view=MESSAGES, place=place, can_fork=can_fork)

    async def overview(self, request: Request) -> Response:
        """Serve the top of an invocation's pages, which an open page uses to refresh."""
        invocation, described = await self.find(request)
        return await self._page(request, "overview.html", described, await _read_log(invocation))

    async def timeline(self, request: Request) -> Response:
        """Serve a page with the timeline of an invocation and its called agents, which is drawn on the server."""
        return await self._report_page(request, "timeline.html")

    async def models(self, request: Request) -> Response:
        """Serve a page with the model calls of an invocation, their tokens and cost. Operators also see the prompts."""
        return await self._report_page(request, "models.html")

    async def state(self, request: Request) -> Response:
        """Serve a page with the state of an invocation and its changes."""
        return await self._report_page(request, "state.html")

    async def report(self, request: Request) -> Response:
        """Serve the report about an invocation as a file. Only the report of an operator has prompts."""
        report, described = await self._read_report(request)
        if report is None:
            raise _unknown(described.id)
        page = await asyncio.to_thread(report.html, prompts="operator" in request.state.login.roles)
        name = quote(f"{described.id}.html", safe="")
        return HTMLResponse(page, headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"})

    async def _read_report(self, request: Request) -> tuple[Report | None, WorkflowExecutionDescription]:
        """Return the report about an invocation, or None if its history cannot be read as one, and its description."""
        invocation, described = await self.find(request)
        try:
            return create_report(await Recording.of(invocation)), described
        except ForeignHistory:
            return None, described

    async def _report_page(self, request: Request, template: str) -> Response:
        report, described = await self._read_report(request)
        if report is None:
            return await self._page(request, template, described, report=None)
        excerpt = Excerpt(report)
        view = View(excerpt.text_count, prompts="operator" in request.state.login.roles)
        values = {"report": report, "excerpt": excerpt, "view": view, "drawing": _draw_timeline(report, described)}
        return await self._page(request, template, described, report.recording.log, **values)

    async def _page(
        self,
        request: Request,
        template: str,
        described: WorkflowExecutionDescription,
        log: Log | None = None,
        **values: Any,
    ) -> Response:
        entry = await read_entry(described)
        details = (await self.list.details.read([entry])).get(entry.id, UNKNOWN)
        overview = await load_overview(self._client, self._reads, described, log, details, time.time())
        login: Login = request.state.login
        allowed = {"stop": "author", "retry": "operator", "give-up": "operator"}
        temporal = f"{self._ui}/namespaces/{quote(self._client.temporal.namespace, safe='')}/workflows/"
        return render_page(
            template,
            login=login,
            top=overview,
            path=overview.path,
            place=root() + overview.path,
            actions=[name for name, role in allowed.items() if role in login.roles and login.browser],
            can_fork="operator" in login.roles,
            notice=NOTICES.get(request.query_params.get("done", ""), ""),
            temporal_ui=f"{temporal}{quote(described.id, safe='')}" if self._ui else "",
            **values,
        )

    async def events(self, request: Request) -> Response:
        """Stream events, starting at `?start=` or after the `Last-Event-ID` that a browser sends when it reconnects."""
        partial = request.query_params.get("partial", "0") not in ("", "0", "false")
        return await self.stream(request, parse_number(request.query_params.get("start"), "start"), partial)

    async def stream(self, request: Request, start: int, partial: bool) -> Response:
        """Return a stream of the events from number `start` on, or after the `Last-Event-ID`."""
        if last := request.headers.get("last-event-id"):
            start = parse_number(last, "Last-Event-ID") + 1
        invocation, _ = await self.find(request)
        return self.respond(request.state.login, self._stream(invocation, start, partial))

    def respond(self, login: Login, content: AsyncGenerator[ServerSentEvent]) -> Response:
        """Return an event stream that counts toward the limits. It ends with the login, and when the server shuts down.

        Raises:
            Refused: The server, or this person, has too many open streams.
        """
        ending = anyio.Event()
        return _StreamResponse(
            _until(ending, content),
            login=login,
            ending=ending,
            close=self.open_stream(login).close,
            ping=KEEP_ALIVE_S,
            sep="\n",
            send_timeout=STALLED_S,
            shutdown_grace_period=GRACE_S,
        )

    def open_stream(self, login: Login) -> ExitStack:
        """Count an event stream, or a request that is held, until the result is closed.

        Raises:
            Refused: The server, or this person, has too many open streams.
        """
        owner, limit = login.owner, self._limits.streams_per_login if login.browser else self._limits.program_streams
        if self.open_streams >= self._limits.streams:
            text = f"All {self._limits.streams} streams are in use. Try again later."
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", text)
        if self._streams[owner] >= limit:
            text = f"You have {limit} open streams, which is the limit. Close one, then try again."
            raise RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, "TooMany", text, {"Retry-After": "5"})
        self._streams[owner] += 1

        def close() -> None:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]

        stack = ExitStack()
        stack.callback(close)
        return stack

    async def _stream(self, invocation: Invocation, start: int, partial: bool) -> AsyncGenerator[ServerSentEvent]:
        try:
            yield ServerSentEvent(comment="events follow", retry=RETRY_MS)
            async with aclosing(stream_events(invocation, start=start, partial=partial)) as events:
                async for event in events:
                    id, kind = (None, "partial") if event.partial else (str(event.index), None)
                    yield ServerSentEvent(format_json(event.to_json()), event=kind, id=id)
            described = await invocation.handle.describe()
            yield ServerSentEvent(format_json({"status": format_status(described)}), event="end")
        except (RPCError, ForeignHistory, StoreFailed) as error:
            # Just end the stream: the client reconnects and resumes after the last event that it received.
            log.warning("stream.broken", invocation_id=invocation.id, error_type=type(error).__name__)

    async def events_json(self, request: Request) -> Response:
        """Serve up to `EVENTS` recorded events as JSON, starting at `?start=`."""
        return JSONResponse(await self.read_events(request, parse_number(request.query_params.get("start"), "start")))

    async def read_events(self, request: Request, start: int) -> JsonObject:
        """Return up to `EVENTS` recorded events of the invocation in the path, and the number of the next one."""
        invocation, described = await self.find(request)
        page = format_events((await _read_log(invocation)).state.events[start:], start)
        return {"invocation_id": invocation.id, "status": format_status(described), **page}

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


class InvocationActions:
    """The forms that change an invocation."""

    def __init__(self, client: AgentClient, find: Find) -> None:
        self._client, self._find = client, find

    async def stop(self, request: Request) -> Response:
        """Request the cancellation of an invocation, as `waystation stop` does."""
        return await self._act(request, "stop")

    async def retry(self, request: Request) -> Response:
        """Retry the held calls of an invocation now, as `waystation retry` does."""
        return await self._act(request, "retry")

    async def give_up(self, request: Request) -> Response:
        """Fail the held calls of an invocation, as `waystation give-up` does."""
        return await self._act(request, "give-up")

    async def _act(self, request: Request, action: str) -> Response:
        await read_form(request)
        id, changed = await self.act(request, action)
        outcome = action if changed else "nothing"
        return redirect(f"{make_path(id)}?done={outcome}")

    async def act(self, request: Request, action: str) -> tuple[str, bool]:
        """Perform one of `ACTIONS` on the invocation in the path. Return its ID, and whether this changed anything.

        Raises:
            Refused: The invocation does not exist, has ended, or only asks operators about a call.
        """
        invocation, described = await self._find(request)
        return described.id, await self.perform(request.state.login, invocation, described, action)

    async def perform(
        self, login: Login, invocation: Invocation, described: WorkflowExecutionDescription, action: str
    ) -> bool:
        """Perform one of `ACTIONS` on an invocation that a login may see. Return whether this changed anything.

        Raises:
            Refused: The invocation has ended, or only asks operators about a call.
        """
        if described.status is not WorkflowExecutionStatus.RUNNING:
            raise RequestRefused(HTTPStatus.CONFLICT, "InvocationEnded", f"{described.id!r} has already ended.")
        match action:
            case "stop":
                await _check_stoppable(invocation)
                await invocation.cancel()
                changed = True
            case "retry":
                changed = bool(await self._client.held.retry(described.id))
            case _:
                changed = bool(await self._client.held.give_up(described.id))
        log.info(f"invocation.{ACTIONS[action]}", invocation_id=described.id, by=login.subject)
        return changed


class _StreamResponse(EventSourceResponse):
    """An event stream that is counted until it ends, even if it never starts. It ends with the login."""

    def __init__(
        self,
        content: AsyncGenerator[bytes],
        *,
        login: Login,
        ending: anyio.Event,
        close: Callable[[], None],
        **options: Any,
    ) -> None:
        super().__init__(content, shutdown_event=ending, **options)
        self._login, self._ending, self._close = login, ending, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def end_with_login() -> None:
            await self._login.wait_until_over()
            self._ending.set()

        watch = asyncio.create_task(end_with_login())
        try:
            await super().__call__(scope, receive, send)
        finally:
            watch.cancel()
            self._close()


def _unknown(id: str) -> RequestRefused:
    text = f"No invocation has the ID {id!r}. In a URL, write `/` in an ID as %2F."
    return RequestRefused(HTTPStatus.NOT_FOUND, "UnknownInvocation", text)


async def describe(client: AgentClient, invocation_id: str) -> WorkflowExecutionDescription | None:
    """Return the description of an invocation, or None if no invocation has that ID."""
    if "\0" in invocation_id:  # PostgreSQL refuses it, and the client would repeat the request for seconds
        return None
    try:
        described = await client.invocation(invocation_id).handle.describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            return None
        raise
    return described if described.workflow_type == WORKFLOW else None


async def view_invocation(client: AgentClient, login: Login, id: str) -> VisibleInvocation:
    """Return an invocation that a login may see, whether or not a worker has begun it.

    Raises:
        Refused: No such invocation exists, or the login may not see it. The two cases look the same.
    """
    described = await describe(client, id)
    if described is None:
        raise _unknown(id)
    invocation = client.invocation(id)
    try:
        log = await invocation.log()
        started = log.state.input or await read_invocation_input(client.temporal, described)
    except (ForeignHistory, UnknownInvocation):
        raise _unknown(id) from None
    if not sees_invocation(login, started.requesters, started.tenant):
        raise _unknown(id)
    return VisibleInvocation(invocation, described, log, started)


def get_id(request: Request) -> str:
    """Return the ID in the path, with escapes decoded."""
    return unquote(request.path_params["id"], errors="replace")


def format_status(execution: WorkflowExecution) -> str:
    """Return an invocation's status as one word, such as `running`."""
    return execution.status.name.lower() if execution.status is not None else "unknown"


async def _read_log(invocation: Invocation) -> Log:
    try:
        return await invocation.log()
    except ForeignHistory as error:
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownInvocation", str(error)) from None


async def _check_stoppable(invocation: Invocation) -> None:
    """Check that an invocation does not only ask operators whether a call took effect.

    It belongs to the same user as the call, who could otherwise end the question before an operator has seen it.

    Raises:
        Refused: It does.
    """
    with suppress(ForeignHistory, StoreFailed):  # what cannot be read can be stopped, too
        started = (await invocation.log()).state.input
        if started and started.unknown:
            text = "Operators are asked here whether a call took effect. Answer the question instead of stopping it."
            raise RequestRefused(HTTPStatus.CONFLICT, "AsksOperators", text)


def format_events(events: Sequence[Event], start: int) -> JsonObject:
    """Return the first `EVENTS` of these events as JSON. `start` is the first one's index in the whole list."""
    part = events[:EVENTS]
    return {
        "events": [event.to_json() for event in part],
        "next": start + len(part),
        "more": len(events) > len(part),
    }


def _draw_timeline(report: Report, described: WorkflowExecutionDescription) -> JsonObject | None:
    """Return the drawing of the timeline, with links to events. An open activity counts its attempts on the server."""
    attempts = {each.activity_id: each.attempt for each in described.raw_description.pending_activities}
    spans = [
        span if span.depth else replace(span, attempts=max(span.attempts, attempts.get(span.activity, 1)))
        for span in report.rows(path_of=lambda id: root() + make_path(id))
    ]
    return timeline.draw(spans, report.recording.events)


async def _until(ending: anyio.Event, events: AsyncGenerator[ServerSentEvent]) -> AsyncGenerator[bytes]:
    """Yield encoded events until there are no more or `ending` is set. After a shutdown, the client reconnects."""

    async def stop(scope: anyio.CancelScope) -> None:
        await ending.wait()
        scope.cancel()

    async with aclosing(events):
        while not ending.is_set():
            event = None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop, tasks.cancel_scope)
                event = await anext(events, None)
                tasks.cancel_scope.cancel()
            if event is None:
                return
            # `sep` of the response does not apply to events, and some clients know only one end of lines.
            yield ensure_bytes(event, "\n").replace(b"\r\n", b"\n")


def parse_number(text: str | None, name: str) -> int:
    """Parse an event number, or return 0 if there is none.

    Raises:
        Refused: The text is not a number of at most nine digits.
    """
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text):
        message = f"{name} is {text[:40]!r}, which is not an event number."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", message)
    return int(text)


def format_json(value: JsonObject) -> str:
    """Return a value as the data of a server-sent event."""
    return json.dumps(value, ensure_ascii=False)
