"""The page with the timeline of an invocation, drawn here, without a script."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionDescription, WorkflowHistory

from waystation.cli import render
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.errors import ForeignHistory
from waystation.web import shown, timeline
from waystation.web.rendering import page
from waystation.web.streams import found, status_of
from waystation.web.timeline import MAX_ROWS, MIN_WIDTH, Scale, Span

ROW, HEAD = 38, 46
"""Heights in pixels, of a row and of what stands above the first."""


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
        drawn, left_out = spans[-MAX_ROWS:], max(0, len(spans) - MAX_ROWS)
        return page(
            "timeline.html",
            login=request.state.login,
            id=invocation.id,
            status=status_of(described),
            running=status_of(described) == "running",
            left_out=left_out,
            rows=[_row(span) for span in drawn],
            picture=_picture(drawn, *timeline.marks(events)) if drawn else None,
        )


def _picture(spans: Sequence[Span], events: Sequence[float], changes: Sequence[float]) -> dict[str, Any]:
    first = min(span.begin for span in spans)
    events = [at for at in events if at >= first]
    changes = [at for at in changes if at >= first]
    scale = Scale([*(span.begin for span in spans), *(span.end for span in spans), *events])
    seconds, width = scale.ruler
    return {
        "height": HEAD + ROW * len(spans) + 8,
        "ruler": {"width": _percent(width), "text": shown.duration(seconds)} if width else None,
        "breaks": [
            {
                "x": _percent(each.x),
                "width": _percent(each.width),
                "text": shown.duration(each.seconds),
                # Beside the right edge there is no room after it.
                "label": _percent(each.x if each.x < 60 else each.x + each.width),
                "anchor": "start" if each.x < 60 else "end",
            }
            for each in scale.breaks
        ],
        "events": [_percent(x) for x in sorted({round(scale.at(at), 2) for at in events})],
        "changes": [_percent(x) for x in sorted({round(scale.at(at), 2) for at in changes})],
        "bars": [_bar(span, scale, HEAD + ROW * index) for index, span in enumerate(spans)],
    }


def _bar(span: Span, scale: Scale, y: int) -> dict[str, Any]:
    x, end = scale.at(span.begin), scale.at(span.end)
    width = max(MIN_WIDTH, end - x)
    return {
        "kind": span.kind,
        "x": _percent(min(x, 100 - width)),
        "width": _percent(width),
        "y": y,
        "text": f"{_length(span)} {shown.line(span.name, 60)}{_tries(span)}",
        "retried": span.attempts > 1,
    }


def _row(span: Span) -> dict[str, Any]:
    return {
        "kind": span.kind,
        "began": render.clock(span.begin),
        "name": shown.line(span.name, 200) + _tries(span),
        "length": _length(span),
    }


def _length(span: Span) -> str:
    return f"{shown.duration(span.seconds)}{' so far,' if span.open else ','}"


def _tries(span: Span) -> str:
    return f", {span.attempts} attempts" if span.attempts > 1 else ""


def _percent(value: float) -> str:
    return f"{value:.2f}%"


async def _attempts(invocation: Invocation, described: WorkflowExecutionDescription) -> Mapping[str, int]:
    """Return how often each activity was attempted, as the server says."""
    attempts: dict[str, int] = {}
    for history in await invocation.histories():
        attempts |= _attempts_in(history)
    for pending in described.raw_description.pending_activities:
        attempts[pending.activity_id] = pending.attempt
    return attempts


def _attempts_in(history: WorkflowHistory) -> dict[str, int]:
    named: dict[int, str] = {}
    attempts: dict[str, int] = {}
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            named[event.event_id] = event.activity_task_scheduled_event_attributes.activity_id
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            attempts[named[started.scheduled_event_id]] = started.attempt
    return attempts
