"""Pages for people: rendered here, and complete without JavaScript."""

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from waystation.client import AgentClient
from waystation.core.event import Event
from waystation.core.wire import WORKFLOW
from waystation.presentation import terminal
from waystation.web.rendering import page
from waystation.web.streams import found, number_of, recorded, status_of

LISTED = 30
SHOWN = 1_000
"""Events on a page; of a longer invocation the last ones."""


class Pages:
    """The pages of one web server."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client

    async def index(self, request: Request) -> Response:
        """Answer with the latest invocations."""
        wanted = request.query_params.get("id", "").strip()
        if wanted:
            return RedirectResponse(f"/invocations/{quote(wanted, safe='')}", HTTPStatus.SEE_OTHER)
        query = f"WorkflowType = '{WORKFLOW}'"
        latest: list[dict[str, object]] = []
        async for execution in self._client.temporal.list_workflows(query, page_size=LISTED, limit=LISTED):
            status = execution.status.name.lower() if execution.status is not None else "unknown"
            latest.append({"id": execution.id, "status": status, "began": execution.start_time.timestamp()})
        return page("index.html", login=request.state.login, latest=latest)

    async def invocation(self, request: Request) -> Response:
        """Answer with what happened in an invocation."""
        invocation, described = await found(self._client, request)
        events = await recorded(invocation)
        left_out = max(0, len(events) - SHOWN)
        status = status_of(described)
        return page(
            "invocation.html",
            login=request.state.login,
            id=invocation.id,
            status=status,
            running=status == "running",
            rows=rows(events[left_out:]),
            left_out=left_out,
            next=len(events),
        )

    async def rows(self, request: Request) -> Response:
        """Answer with the rows of the events from `?start=` on, for a page that grows."""
        start = number_of(request.query_params.get("start"), "start")
        invocation, _ = await found(self._client, request)
        return page("rows.html", rows=rows((await recorded(invocation))[start:][:SHOWN]))


def rows(events: Sequence[Event]) -> list[dict[str, object]]:
    """Return what a page says of events: when, and line by line what happened."""
    return [
        {
            "index": event.index,
            "time": event.timestamp,
            "lines": [{"kind": line.kind, "who": line.who, "text": line.text} for line in terminal.lines_of(event)],
        }
        for event in events
    ]
