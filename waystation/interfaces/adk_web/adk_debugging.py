"""ADK's routes for traces: the recorded model calls, tools and waits of a session, as spans of OpenTelemetry."""

import json
import time
from collections.abc import Iterator
from http import HTTPStatus

from starlette.requests import Request

from waystation.client import Session, parse_session_id
from waystation.core.contract import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.interfaces.adk_web.adk_events import to_adk_event
from waystation.interfaces.adk_web.adk_sessions import AdkSessions
from waystation.interfaces.adk_web.path_names import get_name
from waystation.presentation.timeline import TimelineSpan, build_spans
from waystation.web.http_responses import RequestRefused
from waystation.web.session_pages import SHOWN_TURNS

ADK = "gcp.vertex.agent"
"""The prefix of ADK's own attributes."""
OPERATIONS = {"model": "generate_content", "tool": "execute_tool", "agent": "execute_tool", "wait": "wait"}
"""The name of a span for each kind in the timeline."""


class AdkDebugging:
    """The handlers for traces, and the events that others are about."""

    def __init__(self, sessions: AdkSessions) -> None:
        self._sessions = sessions

    async def read_session_trace(self, request: Request) -> list[JsonObject]:
        """Return the spans of the latest invocations of a session."""
        session = await self._sessions.find_named(request)
        return [span for log in await session.logs(last=SHOWN_TURNS) for span in make_spans(session, log)]

    async def read_event_trace(self, request: Request) -> JsonObject:
        """Return the attributes of the span that ended with an event."""
        session, log, event = await self.find_event(request)
        for span in make_spans(session, log):
            attributes: JsonObject = span["attributes"]
            if attributes.get(f"{ADK}.event_id") == event.id:
                return attributes
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownEvent", "Trace not found")

    async def find_event(self, request: Request) -> tuple[Session, Log, Event]:
        """Return the event that the path names, with the log and the session of the person that it belongs to.

        ADK's front end does not escape the IDs of events in paths.
        """
        for id in (get_name(request, "event"), request.path_params["event"]):
            invocation_id = id.rpartition("/e")[0]
            if names := parse_session_id(invocation_id.rpartition("/")[0]):
                session = await self._sessions.find(request, get_name(request, "app"), names[2])
                for log in await session.logs() if invocation_id.startswith(f"{session.id}/") else ():
                    for event in log.state.events if log.invocation_id == invocation_id else ():
                        if event.id == id:
                            return session, log, event
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownEvent", "The person has no event with this ID.")


def make_spans(session: Session, log: Log) -> Iterator[JsonObject]:
    """Yield the spans of an invocation: first the invocation, then what ran or waited in it."""
    rows = build_spans(log, {}, time.time())
    if not rows:
        return
    number = int(log.invocation_id.rpartition("/")[2])
    names = {"gen_ai.conversation.id": session.given.session_id, f"{ADK}.invocation_id": log.invocation_id}
    agent = log.state.input.agent if log.state.input else ""
    whole = {**names, "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
    begin, end = min(row.begin for row in rows), max(row.end for row in rows)
    yield _make_span(f"invoke_agent {agent}", number, 0, begin, end, whole)
    for index, row in enumerate(rows, 1):
        operation = OPERATIONS[row.kind]
        attributes = {**names, "gen_ai.operation.name": operation, **_describe_end(row, log)}
        yield _make_span(f"{operation} {row.name}", number, index, row.begin, row.end, attributes)


def _make_span(name: str, number: int, index: int, begin: float, end: float, attributes: JsonObject) -> JsonObject:
    first = number * 1_000_000
    return {
        "name": name,
        "start_time": int(begin * 1e9),
        "end_time": int(end * 1e9),
        "trace_id": number,
        "span_id": first + index,
        "parent_span_id": first if index else None,
        "attributes": attributes,
        "logs": [],
    }


def _describe_end(row: TimelineSpan, log: Log) -> JsonObject:
    """Return the attributes from the event with which a span ended."""
    events = log.state.events
    if not 0 < row.event <= len(events):
        return {f"{ADK}.event_id": ""}
    event = to_adk_event(events[row.event - 1])
    attributes: JsonObject = {f"{ADK}.event_id": event["id"]}
    if row.kind == "model":
        usage = event.get("usageMetadata", {})
        attributes |= {
            "gen_ai.usage.input_tokens": usage.get("promptTokenCount", 0),
            "gen_ai.usage.output_tokens": usage.get("candidatesTokenCount", 0),
            f"{ADK}.llm_response": json.dumps({"content": event.get("content")}, ensure_ascii=False),
        }
    return attributes
