"""The page with the timeline of an invocation, drawn here, without a script."""

import time
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from temporalio.client import WorkflowExecutionDescription

from waystation.client import AgentClient, Invocation
from waystation.core.errors import ForeignHistory
from waystation.history import attempts_of
from waystation.presentation import timeline
from waystation.presentation.timeline import MAX_ROWS, Span
from waystation.web.rendering import page
from waystation.web.streams import found, status_of


class TimelinePages:
    """The timelines of invocations."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client

    async def show(self, request: Request) -> Response:
        """Answer with the timeline of an invocation."""
        invocation, described = await found(self._client, request)
        try:
            log = await invocation.log()
        except ForeignHistory:
            log = None
        spans: list[Span] = []
        if log is not None and log.entries_before == 0:
            spans = timeline.spans(log, await _attempts(invocation, described), time.time())
        events = log.events if log else []
        drawn = [timeline.Row(span) for span in spans[-MAX_ROWS:]]
        return page(
            "timeline.html",
            login=request.state.login,
            id=invocation.id,
            status=status_of(described),
            running=status_of(described) == "running",
            left_out=len(spans) - len(drawn),
            picture=timeline.picture(drawn, events) if drawn else None,
        )


async def _attempts(invocation: Invocation, described: WorkflowExecutionDescription) -> Mapping[str, int]:
    """Return how often each activity was attempted, as the server says."""
    found = {each.activity: each.count for each in attempts_of(await invocation.histories())}
    for pending in described.raw_description.pending_activities:
        found[pending.activity_id] = pending.attempt
    return found
