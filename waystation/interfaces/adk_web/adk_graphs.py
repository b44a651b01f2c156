"""ADK's routes about agents: their list, and drawings of them in Graphviz's language."""

import json
import platform
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from starlette.requests import Request

from waystation.client import AgentDetails
from waystation.core.errors import ForeignHistory
from waystation.core.payload import JsonObject
from waystation.interfaces.adk_web.adk_debugging import AdkDebugging
from waystation.interfaces.adk_web.path_names import get_name
from waystation.version import waystation_version
from waystation.web.http_responses import RequestRefused
from waystation.web.web_services import WebServices

Agents = Mapping[str, AgentDetails]
GRAY, GREEN, LIGHT_GREEN = "#cccccc", "#0F5223", "#69CB87"


class AdkGraphs:
    """The handlers about agents."""

    def __init__(self, services: WebServices, debugging: AdkDebugging) -> None:
        self._services, self._debugging = services, debugging

    async def _read(self) -> Mapping[str, Agents]:
        try:
            return await self._services.client.agents.describe()
        except ForeignHistory as error:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "NoAgents", str(error)) from None

    async def _find(self, request: Request) -> tuple[str, Agents]:
        name = get_name(request, "app")
        if (agents := (await self._read()).get(name)) is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownAgent", f"App not found: {name}")
        return name, agents

    async def read_version(self, _request: Request) -> JsonObject:
        """Return the version of Waystation."""
        return {"version": waystation_version(), "language": "python", "language_version": platform.python_version()}

    async def list_apps(self, request: Request) -> object:
        """List the agents that workers have announced, each of which is an app."""
        agents = await self._read()
        if request.query_params.get("detailed", "false").lower() not in ("true", "1"):
            return list(agents)
        return {
            "apps": [
                {"name": name, "rootAgentName": name, "description": tree[name].description, "language": "python"}
                for name, tree in agents.items()
            ]
        }

    async def describe(self, request: Request) -> JsonObject:
        """Return the agents of an app as a tree."""
        name, agents = await self._find(request)
        return {"name": name, "root_agent": describe_agent(name, agents)}

    async def draw(self, request: Request) -> JsonObject:
        """Draw the agents of an app with their tools."""
        name, agents = await self._find(request)
        return {"dotSrc": draw_agents(name, agents, dark=_is_dark(request))}

    async def draw_levels(self, request: Request) -> JsonObject:
        """Draw the agents of an app. There is one level."""
        return {"": await self.draw(request)}

    async def draw_event(self, request: Request) -> JsonObject:
        """Draw the agents of an app, and mark what an event is about."""
        name, agents = await self._find(request)
        _, _, event = await self._debugging.find_event(request)
        calls = [(event.author, call["name"]) for call in event.function_calls()]
        responses = [(response["name"], event.author) for response in event.function_responses()]
        return {"dotSrc": draw_agents(name, agents, calls or responses or [(event.author, "")])}


def _is_dark(request: Request) -> bool:
    return request.query_params.get("dark_mode", "false").lower() in ("true", "1")


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


def draw_agents(root: str, agents: Agents, marked: list[tuple[str, str]] | None = None, *, dark: bool = True) -> str:
    """Return a graph of agents and their tools, in which the ends of `marked` edges, and these edges, are green."""
    marked = marked or []
    ends = {end for pair in marked for end in pair}
    lines = [f"graph [bgcolor={_quote('#333537' if dark else '#ffffff')} rankdir=LR]"]
    for name, label, shape in dict.fromkeys(_list_nodes(root, agents)):
        fill = f" fillcolor={_quote(GREEN)}" if name in ends else ""
        style, color = ("filled,rounded", GREEN) if fill else ("rounded", GRAY)
        looks = f"label={_quote(label)} shape={shape} style={_quote(style)} color={_quote(color)}{fill}"
        lines.append(f"{_quote(name)} [{looks} fontcolor={_quote(GRAY)}]")
    for tail, head in dict.fromkeys(_list_edges(agents)):
        looks = f"arrowhead=none color={_quote(GRAY)}"
        if (tail, head) in marked or (head, tail) in marked:
            looks = f"color={_quote(LIGHT_GREEN)}" + ("" if (tail, head) in marked else " dir=back")
        lines.append(f"{_quote(tail)} -> {_quote(head)} [{looks}]")
    return "strict digraph {\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n"


def _list_nodes(root: str, agents: Agents) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((root, *agents)):
        yield name, f"🤖 {name}", "ellipse"
    for details in agents.values():
        yield from ((tool, f"🔧 {tool}", "box") for tool in details.tools or () if tool not in agents)


def _list_edges(agents: Agents) -> Iterator[tuple[str, str]]:
    for name, details in agents.items():
        yield from ((name, below) for below in (*details.sub_agents, *details.called, *(details.tools or ())))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
