"""ADK's routes about agents and traces: graphs in Graphviz's language, and the timeline as spans of OpenTelemetry."""

import time
from collections.abc import Collection, Iterator, Mapping
from http import HTTPStatus

from starlette.requests import Request

from waystation.client import AgentDetails, Session, parse_session_id
from waystation.core.contract import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.interfaces.adk_web.adk_events import to_adk_event
from waystation.interfaces.adk_web.adk_routes import get_name
from waystation.interfaces.adk_web.adk_sessions import AdkSessions
from waystation.presentation.timeline import TimelineSpan, build_spans
from waystation.web.http_responses import RequestRefused
from waystation.web.invocation_pages import format_json
from waystation.web.session_pages import SHOWN_TURNS
from waystation.web.web_services import WebServices

Agents = Mapping[str, AgentDetails]
ADK = "gcp.vertex.agent"
"""The prefix of ADK's own attributes of spans."""
OPERATIONS = {"model": "generate_content", "tool": "execute_tool", "agent": "execute_tool", "wait": "wait"}
"""The operation of a span for each kind in the timeline."""


class AdkDebugging:
    """The handlers about agents and traces."""

    def __init__(self, services: WebServices, sessions: AdkSessions) -> None:
        self._services, self._sessions = services, sessions

    async def _find_agents(self, request: Request) -> tuple[str, Agents]:
        name = get_name(request, "app")
        if (agents := (await self._services.client.agents.describe()).get(name)) is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownAgent", f"App not found: {name}")
        return name, agents

    async def list_apps(self, request: Request) -> object:
        """List the agents that workers have announced. Each is an app."""
        found = await self._services.client.agents.describe()
        if request.query_params.get("detailed") != "true":
            return list(found)
        details = {name: {"description": agents[name].description} for name, agents in found.items()}
        return {
            "apps": [{"name": name, "rootAgentName": name, "language": "python", **details[name]} for name in found]
        }

    async def describe(self, request: Request) -> JsonObject:
        """Return the agents of an app as a tree."""
        name, agents = await self._find_agents(request)
        return {"name": name, "root_agent": describe_agent(name, agents)}

    async def draw(self, request: Request) -> JsonObject:
        """Draw the agents of an app with their tools."""
        _, agents = await self._find_agents(request)
        return {"dotSrc": draw_agents(agents, dark=request.query_params.get("dark_mode") == "true")}

    async def draw_levels(self, request: Request) -> JsonObject:
        """Draw the agents of an app. There is one level."""
        return {"": await self.draw(request)}

    async def draw_event(self, request: Request) -> JsonObject:
        """Draw the agents of an app, and mark what an event is about."""
        _, agents = await self._find_agents(request)
        _, _, event = await self._find_event(request)
        called = [part["name"] for part in (*event.function_calls(), *event.function_responses())]
        return {"dotSrc": draw_agents(agents, (event.author, *called))}

    async def read_session_trace(self, request: Request) -> list[JsonObject]:
        """Return the spans of the latest invocations of a session."""
        session = await self._sessions.find_named(request)
        return [span for log in await session.logs(last=SHOWN_TURNS) for span in make_spans(session, log)]

    async def read_event_trace(self, request: Request) -> JsonObject:
        """Return the attributes of the span that ended with an event."""
        session, log, event = await self._find_event(request)
        found: list[JsonObject] = [span["attributes"] for span in make_spans(session, log)]
        return next((each for each in found if each.get(f"{ADK}.event_id") == event.id), {})

    async def _find_event(self, request: Request) -> tuple[Session, Log, Event]:
        """Return the event that the path names, with its log and its session, which is one of the person.

        ADK's front end does not escape the IDs of events in paths.
        """
        for id in (get_name(request, "event"), str(request.path_params["event"])):
            invocation_id = id.rpartition("/e")[0]
            if names := parse_session_id(invocation_id.rpartition("/")[0]):
                session = await self._sessions.find(request, get_name(request, "app"), names[2])
                logs = await session.logs() if invocation_id.startswith(f"{session.id}/") else []
                if pair := next(((log, each) for log in logs for each in log.state.events if each.id == id), None):
                    return session, *pair
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownEvent", "The person has no event with this ID.")


def describe_agent(name: str, agents: Agents, above: tuple[str, ...] = ()) -> JsonObject:
    """Return an agent with the agents below it."""
    details = agents.get(name) or AgentDetails()
    below = [each for each in details.sub_agents if each not in (name, *above)]
    return {
        "name": name,
        "description": details.description,
        "model": details.model,
        "tools": [{"name": tool} for tool in (*(details.tools or ()), *details.called)],
        "sub_agents": [describe_agent(each, agents, (name, *above)) for each in below],
    }


def draw_agents(agents: Agents, marked: Collection[str] = (), *, dark: bool = True) -> str:
    """Return a graph of agents and their tools, in which the `marked` ones are green."""
    tools = {tool: f"🔧 {tool}" for details in agents.values() for tool in details.tools or ()}
    lines = [f'graph [bgcolor="{"#333537" if dark else "#ffffff"}" rankdir=LR]']
    for name, label in {**tools, **{name: f"🤖 {name}" for name in agents}}.items():
        shape, fill = "ellipse" if name in agents else "box", "#0F5223" if name in marked else "none"
        looks = f'shape={shape} style="filled,rounded" fillcolor="{fill}" color="#cccccc" fontcolor="#cccccc"'
        lines.append(f"{_quote(name)} [label={_quote(label)} {looks}]")
    for name, details in agents.items():
        below = (*details.sub_agents, *details.called, *(details.tools or ()))
        lines += [f'{_quote(name)} -> {_quote(each)} [arrowhead=none color="#cccccc"]' for each in below]
    return "strict digraph {\n  " + "\n  ".join(lines) + "\n}\n"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def make_spans(session: Session, log: Log) -> Iterator[JsonObject]:
    """Yield the spans of an invocation: first the invocation, then what ran or waited in it."""
    if not (rows := build_spans(log, {}, time.time())):
        return
    agent = log.state.input.agent if log.state.input else ""
    names = {"gen_ai.conversation.id": session.given.session_id, f"{ADK}.invocation_id": log.invocation_id}
    number = int(log.invocation_id.rpartition("/")[2])
    whole = TimelineSpan("agent", agent, "", min(row.begin for row in rows), max(row.end for row in rows))
    for index, row in enumerate((whole, *rows)):
        operation = OPERATIONS[row.kind] if index else "invoke_agent"
        ended = _describe_end(row, log) if index else {"gen_ai.agent.name": agent}
        yield {
            "name": f"{operation} {row.name}",
            "start_time": int(row.begin * 1e9),
            "end_time": int(row.end * 1e9),
            "trace_id": number,
            "span_id": number * 1_000_000 + index,
            "parent_span_id": number * 1_000_000 if index else None,
            "attributes": {**names, "gen_ai.operation.name": operation, **ended},
            "logs": [],
        }


def _describe_end(row: TimelineSpan, log: Log) -> JsonObject:
    """Return the attributes from the event with which a span ended."""
    if not 0 < row.event <= len(log.state.events):
        return {f"{ADK}.event_id": ""}
    event = to_adk_event(log.state.events[row.event - 1])
    counts = event.get("usageMetadata", {})
    tokens = {
        "gen_ai.usage.input_tokens": counts.get("promptTokenCount", 0),
        "gen_ai.usage.output_tokens": counts.get("candidatesTokenCount", 0),
        f"{ADK}.llm_response": format_json({"content": event.get("content")}),
    }
    return {f"{ADK}.event_id": event["id"], **(tokens if row.kind == "model" else {})}
