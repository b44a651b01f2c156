"""The inbox: its page, its rows for an open page, and streams that report when a list or a call has changed."""

import json
import time
from collections.abc import AsyncGenerator

import structlog
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from waystation.client import AgentClient, find_store_differences
from waystation.core import ids
from waystation.core.errors import WaystationError
from waystation.core.log import Log
from waystation.core.payload import JsonObject, digest
from waystation.storage import StoreIds
from waystation.web.http_responses import render_page
from waystation.web.invocation_details import Run
from waystation.web.invocation_pages import InvocationPages, get_id
from waystation.web.limits import Limits
from waystation.web.logins import Login
from waystation.web.pending_list import InboxQuery, PendingList, Selection
from waystation.web.shared_reads import current_age_s, record_reads

log = structlog.get_logger("waystation.web")

PAUSE_S = 1.0
"""Pause between two looks at the list for an open page. An answer that was sent elsewhere shows after this time."""
COMPARE_S = 60.0
"""How long a comparison with the stores of the workers counts. It reads several histories."""
RETRY_MS = 2_000
"""How long browsers wait before they open a broken stream again."""


class InboxPages:
    """The inbox, and the streams that keep it and the pages of calls current."""

    def __init__(self, client: AgentClient, calls: PendingList, invocations: InvocationPages, limits: Limits) -> None:
        self._client, self._calls, self._invocations, self._limits = client, calls, invocations, limits
        self._differences, self._compare_at = list[str](), 0.0

    async def inbox(self, request: Request) -> Response:
        """Serve a page of the pending calls that the login may see."""
        if (now := time.monotonic()) >= self._compare_at:
            self._compare_at, stores = now + COMPARE_S, StoreIds(payloads=self._client.blobs.files)
            self._differences = await find_store_differences(self._client.temporal, self._client.task_queue, stores)
        return await self._page(request, "inbox.html")

    async def rows(self, request: Request) -> Response:
        """Serve only the list of pending calls, which an open page uses to refresh."""
        return await self._page(request, "inbox_rows.html")

    async def _page(self, request: Request, template: str) -> Response:
        query = InboxQuery.parse(request.query_params)
        selection = await self._calls.select(request.state.login, query)
        size = self._limits.calls_per_page
        calls, page, last = query.cut(selection.calls, size)
        unknown = 0
        if template == "inbox.html" and "operator" in request.state.login.roles and not query.unknown:
            unknown = len((await self._calls.select(request.state.login, InboxQuery(unknown="1"))).calls)
        return render_page(
            template,
            login=request.state.login,
            query=query,
            selection=selection,
            unknown=unknown,
            calls=calls,
            other_store=self._client.blobs.files.place if self._differences else "",
            messages=await self._invocations.list.details.read_messages(
                [Run(call.invocation_id, call.run) for call in calls if call.run]
            ),
            options=_make_options(query, selection),
            now=time.time(),
            page=page,
            last=last,
            first_number=(page - 1) * size + 1,
        )

    async def events(self, request: Request) -> Response:
        """Stream the version and the age of the list: once at first, and whenever they change."""
        login: Login = request.state.login
        return self._invocations.respond(login, self._stream_versions(login, InboxQuery.parse(request.query_params)))

    async def _stream_versions(self, login: Login, query: InboxQuery) -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(comment="versions follow", retry=RETRY_MS)
        shown: JsonObject = {}
        try:
            while True:
                record_reads()
                selection = await self._calls.select(login, query, max_age_s=PAUSE_S / 2)
                look = {"version": selection.version, "waiting": selection.waiting, "age_s": current_age_s()}
                if shown != (shown := look):
                    yield ServerSentEvent(json.dumps(look))
                await self._calls.wait(PAUSE_S)
        except RPCError as error:
            # Just end the stream: the client connects again.
            log.warning("stream.broken", error_type=type(error).__name__)

    async def call_events(self, request: Request) -> Response:
        """Stream an event whenever the status of a call differs from `?seen=`, for example because it was answered."""
        content = self._stream_changes(get_id(request), request.query_params.get("seen", ""))
        return self._invocations.respond(request.state.login, content)

    async def _stream_changes(self, approval_id: str, seen: str) -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(comment="changes follow", retry=RETRY_MS)
        try:
            invocation_id, function_call_id = ids.parse_approval(approval_id)
            async for recorded in self._client.invocation(invocation_id).follow():
                progress = summarize_progress(recorded, ids.requesting_call(function_call_id))
                if progress != seen:
                    seen = progress
                    yield ServerSentEvent(progress)
        except (RPCError, WaystationError, ValueError) as error:
            log.warning("stream.broken", error_type=type(error).__name__)


def summarize_progress(recorded: Log, function_call_id: str) -> str:
    """Return a digest that changes whenever the page of a call would show another status."""
    call, ended = recorded.state.calls.get(function_call_id), recorded.state.outcome.ended
    facts: list[object] = [ended]
    if call is not None:
        facts += [call.waiting, call.expired, call.claimed_by, [*call.approved_by], call.level, call.answer is not None]
    return digest(facts)[:16]


def _make_options(query: InboxQuery, selection: Selection) -> dict[str, list[tuple[str, str]]]:
    """Return the choices of the filters `agent`, `tool` and `user`: pairs of a value and its label."""
    choices: dict[str, list[tuple[str, str]]] = {}
    for name, counted in selection.options.items():
        labels = {value: f"{value} ({count})" for value, count in counted}
        chosen = getattr(query, name)
        choices[name] = list({**labels, **({chosen: labels.get(chosen, chosen)} if chosen else {})}.items())
    return choices
