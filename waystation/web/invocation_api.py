"""The JSON API for agents and invocations: list, start, read, follow, stop, retry, give up and fork them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from waystation.approvers.audit import gather_invocation
from waystation.client import AgentClient, AgentDetails, Invocation, InvocationEntry, read_entry
from waystation.core.errors import ForeignHistory, WaystationError
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.web.http_responses import RequestRefused
from waystation.web.invocation_details import UNKNOWN, InvocationDetails
from waystation.web.invocation_list_page import ListFilters
from waystation.web.invocation_pages import InvocationPages
from waystation.web.starter import ForkBody, StartBody, Starter
from waystation.web.typed_routes import Body, Query, ReplyBody, WaitQuery, set_status

EventNumber = Annotated[int, Field(ge=0, le=10**9)]


class AgentTree(ReplyBody):
    """An agent that can be started."""

    name: str
    agents: dict[str, AgentDetails]
    """The agent and those below it, by name."""


class AgentList(ReplyBody):
    """The agents that workers have announced. This does not show whether a worker is running."""

    agents: tuple[AgentTree, ...]


class InvocationItem(ReplyBody):
    """An invocation."""

    id: str
    agent: str | None
    user_id: str | None
    tenant: str | None
    status: str
    """`running`, `waiting`, `held`, `completed`, `failed`, `canceled`, `terminated` or `timed_out`."""
    started_at: datetime
    ended_at: datetime | None
    pending: tuple[str, ...]
    """The approval IDs of calls that wait, including those of called agents."""
    message: str
    """The beginning of the message."""
    tokens: int
    cost: float
    error: str
    """Why the invocation failed or stopped early, in one line. Empty otherwise."""


class InvocationList(ReplyBody):
    """A page of invocations."""

    invocations: tuple[InvocationItem, ...]
    counts: dict[str, int]
    """The number of invocations for each status, with all other filters applied."""
    has_more: bool
    """Whether there are older invocations, which are neither listed nor counted."""
    page: int
    pages: int


class ReadInvocation(InvocationItem):
    """An invocation with its result."""

    text: str | None
    """The final text, once the invocation has completed."""
    output: JsonObject | None
    """The final text as JSON, if the agent has an output schema."""
    events: int
    """The number of events so far."""


class StatusQuery(WaitQuery):
    """How long to wait for which change."""

    seen: Literal["running", "waiting", "held"] = "running"
    """The request is held as long as the invocation has this status."""


class EventsQuery(Query):
    """The events to return."""

    start: EventNumber = 0
    """The number of events to skip."""


class StreamQuery(EventsQuery):
    """The events to stream."""

    partial: bool = False
    """Whether to send a model's text while it is generated, in events that are named `partial`."""


class Events(ReplyBody):
    """Some of the events of a conversation."""

    events: tuple[JsonObject, ...]
    next: int
    """The `start` of the following events."""
    more: bool


class EventPage(Events):
    """Events of an invocation."""

    invocation_id: str
    status: str


class Audit(ReplyBody):
    """Who decided what in an invocation and the agents that it called."""

    invocations: dict[str, tuple[JsonObject, ...]]
    """The entries of each, by ID."""
    missing: tuple[str, ...]
    """IDs of called agents whose histories were deleted."""


class StartedInvocation(ReplyBody):
    """An invocation that was started."""

    invocation_id: str
    existed: bool
    """Whether an earlier request with the same key has started it."""


class Changed(ReplyBody):
    """The effect of an action."""

    invocation_id: str
    changed: bool
    """False if nothing was held or waiting for its next attempt."""


class InvocationApi:
    """The routes for agents and invocations."""

    def __init__(self, client: AgentClient, invocations: InvocationPages, starter: Starter) -> None:
        self._client, self._invocations, self._starter = client, invocations, starter

    async def list_agents(self, request: Request) -> AgentList:
        """List the agents that workers have announced."""
        try:
            trees = await self._client.agents.describe()
        except ForeignHistory as error:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "NoAgents", str(error)) from None
        return AgentList(agents=tuple(AgentTree(name=name, agents=agents) for name, agents in trees.items()))

    async def list_invocations(self, request: Request, query: ListFilters) -> InvocationList:
        """List the invocations that the caller may see. The filters are those of the page."""
        found = await self._invocations.list.read(request.state.login, query, datetime.now(UTC))
        items = [make_item(entry, found.details.get(entry.id, UNKNOWN)) for entry in found.entries]
        return InvocationList(
            invocations=tuple(InvocationItem(**item) for item in items),
            counts=dict(found.counts),
            has_more=found.has_more,
            page=found.page,
            pages=found.pages,
        )

    async def start_invocation(self, request: Request, body: StartBody, key: str | None) -> StartedInvocation:
        """Start an invocation in the name of the caller.

        The status is 200 if an earlier request with the same key has started it, or else 201.
        """
        started = await self._starter.start(request.state.login, key=key, **body.options())
        if started.existed:
            set_status(request, HTTPStatus.OK)
        return StartedInvocation(invocation_id=started.id, existed=started.existed)

    async def read_invocation(self, request: Request, query: StatusQuery) -> ReadInvocation:
        """Read an invocation. With `wait_s`, the response comes as soon as the status is not the one in `seen`."""
        invocation, described = await self._invocations.find(request)
        if query.wait_s and described.close_time is None:
            with self._invocations.open_stream(request.state.login):
                await wait_until(lambda log: find_status(log) != query.seen, invocation, query.wait_s)
            invocation, described = await self._invocations.find(request)
        entry = await read_entry(described)
        details = (await self._invocations.list.details.read([entry])).get(entry.id, UNKNOWN)
        text, output, events = None, None, 0
        with suppress(ForeignHistory):
            events = (await invocation.log()).state.event_count
        if entry.status == "completed":
            with suppress(WaystationError):
                result = await invocation.result()
                text, output = result.text, result.output
        return ReadInvocation(**make_item(entry, details), text=text, output=output, events=events)

    async def read_invocation_events(self, request: Request, query: EventsQuery) -> EventPage:
        """Read events of an invocation."""
        return EventPage(**await self._invocations.read_events(request, query.start))

    async def stream_invocation(self, request: Request, query: StreamQuery) -> Response:
        """Stream the events of an invocation, from the past ones on.

        The ID of an event is its index, so a client that connects again with `Last-Event-ID` misses nothing. The last
        event is named `end` and has the status.
        """
        return await self._invocations.stream(request, query.start, query.partial)

    async def read_audit(self, request: Request) -> Audit:
        """Read who decided what in an invocation. The entries are those of `waystation audit`."""
        invocation, _ = await self._invocations.find(request)
        accounts = await gather_invocation(self._client, invocation.id)
        entries = {id: tuple(lines) for id, lines in accounts.by_invocation.items()}
        return Audit(invocations=entries, missing=tuple(accounts.missing))

    async def read_report(self, request: Request) -> Response:
        """Download the report about an invocation as an HTML file."""
        return await self._invocations.report(request)

    async def stop_invocation(self, request: Request, body: Body) -> Changed:
        """Request the cancellation of an invocation. It takes effect when a worker runs and the tools have ended."""
        return await self._act(request, "stop")

    async def retry_invocation(self, request: Request, body: Body) -> Changed:
        """Make the next attempt of what is held or failing now."""
        return await self._act(request, "retry")

    async def give_up_invocation(self, request: Request, body: Body) -> Changed:
        """Fail the held calls of an invocation."""
        return await self._act(request, "give-up")

    async def _act(self, request: Request, action: str) -> Changed:
        id, changed = await self._invocations.actions.act(request, action)
        return Changed(invocation_id=id, changed=changed)

    async def fork_invocation(self, request: Request, body: ForkBody) -> StartedInvocation:
        """Fork an invocation at an event or, to try a failed step again, at its last event."""
        source, _ = await self._invocations.find(request)
        fork = await self._starter.fork(request.state.login, source.id, **dict(body))
        return StartedInvocation(invocation_id=fork.id, existed=False)


async def wait_until(is_over: Callable[[Log], bool], invocation: Invocation, limit_s: float) -> None:
    """Follow an invocation until a condition is met, or for a time."""
    with suppress(TimeoutError, ForeignHistory):
        async with asyncio.timeout(limit_s):
            async for log in invocation.follow():
                if is_over(log):
                    return


def make_item(entry: InvocationEntry, details: InvocationDetails) -> dict[str, Any]:
    """Return the fields of an `InvocationItem`."""
    return {
        **{name: getattr(entry, name) for name in ("id", "agent", "user_id", "tenant", "status")},
        **{name: getattr(details, name) for name in ("message", "tokens", "cost", "error")},
        "started_at": entry.started_at,
        "ended_at": entry.ended_at,
        "pending": tuple(call.approval_id for call in (*entry.pending, *entry.called_pending)),
    }


def find_status(log: Log) -> str:
    """Return the status of an open invocation, or `ended`."""
    if log.state.outcome.ended:
        return "ended"
    return "held" if log.state.holds else "waiting" if log.state.waiting() else "running"
