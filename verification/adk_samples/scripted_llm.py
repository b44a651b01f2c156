"""A model of google-adk that calls every tool and visits every agent of a tree, each once."""

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from pydantic import PrivateAttr, TypeAdapter

Json = dict[str, Any]
TRANSFER = "transfer_to_agent"
SET_RESPONSE = "set_model_response"
LAST = (SET_RESPONSE, "exit_loop")
"""Tools whose call ends the run of the agent."""
_STATE = re.compile(r"{([A-Za-z_]\w*)}")
"""Matches a state variable in an instruction."""
_EXAMPLES: Mapping[str, Any] = {"string": "text", "integer": 7, "number": 1.5, "boolean": True, "null": None}
"""An argument of each JSON type."""


@dataclass
class Progress:
    """The agents and tools of a tree that have not acted yet."""

    parents: dict[str, str]
    """The agent above each one, by name."""
    unvisited: list[str]
    """LLM agents that have not acted. Those that cannot transfer to others are last."""
    uncalled: set[str] = field(default_factory=set)
    """Tools that were declared but not called."""
    state: Json = field(default_factory=dict)
    """The session's initial state: the variables in the instructions of agents that are called as tools."""
    transfers: int = 0

    def find_transfer(self, agent: str, targets: Sequence[str]) -> str | None:
        """Return a transfer target of `agent` that has not acted or leads to an agent that has not acted."""
        if self.transfers >= 2 * len(self.parents):
            return None  # an unreachable agent must not cause endless transfers
        self.transfers += 1
        # Agents above the target lead to it, and the agent above a subtree leads out of it.
        ways = [name for pending in self.unvisited for name in [*self._above(pending), self.parents.get(agent)]]
        return next((name for name in ways if name in targets), None)

    def _above(self, agent: str) -> Iterator[str]:
        yield agent
        while agent in self.parents:
            agent = self.parents[agent]
            yield agent


class ScriptedLlm(BaseLlm):  # type: ignore[misc]  # google-adk is not in the environment that is checked
    """Calls each declared tool once, then transfers to an agent that has not acted, then replies with text."""

    _agent: str = PrivateAttr()
    _progress: Progress = PrivateAttr()
    _called: set[str] = PrivateAttr(default_factory=set)

    def __init__(self, name: str, agent: str, progress: Progress) -> None:
        super().__init__(model=name)
        self._agent, self._progress = agent, progress

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one reply."""
        if self._agent in self._progress.unvisited:
            self._progress.unvisited.remove(self._agent)
        yield LlmResponse(content=types.Content(role="model", parts=[self._reply(llm_request)]))

    def _reply(self, request: LlmRequest) -> types.Part:
        declared = {each.name: each for tool in request.config.tools or () for each in _functions(tool)}
        pending = sorted(declared.keys() - self._called - {TRANSFER}, key=lambda name: (name in LAST, name))
        self._progress.uncalled |= {f"{self._agent}.{name}" for name in pending}
        if TRANSFER in declared and (not pending or pending[0] in LAST):
            names = _parameters(declared[TRANSFER])["properties"]["agent_name"].get("enum", [])
            if target := self._progress.find_transfer(self._agent, names):
                return _call(TRANSFER, {"agent_name": target})
        if not pending:
            return types.Part(text=_text(request.config))
        self._called.add(pending[0])
        self._progress.uncalled.discard(f"{self._agent}.{pending[0]}")
        return _call(pending[0], example(_parameters(declared[pending[0]])))


def script(root: Any) -> Progress:
    """Give every LLM agent below `root` a scripted model, and return their progress, which the models update.

    Agents that are called as tools need not act, because their tools are called.
    """
    agents = [agent for agent in tree(root) if isinstance(agent, LlmAgent)]
    visitable = [agent for agent in agents if agent is root or agent.parent_agent]
    visitable.sort(key=lambda agent: agent.disallow_transfer_to_parent)
    parents = {agent.name: agent.parent_agent.name for agent in tree(root) if agent.parent_agent}
    called = [agent for agent in agents if agent not in visitable and isinstance(agent.instruction, str)]
    state = {name: "text" for agent in called for name in _STATE.findall(agent.instruction)}
    progress = Progress(parents, [agent.name for agent in visitable], state=state)
    for agent in agents:
        model = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", "")
        agent.model = ScriptedLlm(model or "gemini-3.5-flash", agent.name, progress)
    return progress


def tree(root: Any) -> Iterator[Any]:
    """Yield every agent below `root`, including agents that are called as tools."""
    yield root
    for tool in getattr(root, "tools", ()):
        if hasattr(tool, "agent"):
            yield from tree(tool.agent)
    for below in root.sub_agents:
        yield from tree(below)


def example(schema: Json) -> Any:
    """Return a value that a JSON schema allows."""
    return _example(schema, schema.get("$defs", {}))


def _example(schema: Json, definitions: Json) -> Any:
    if "$ref" in schema:
        return _example(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in ("anyOf", "any_of", "oneOf", "allOf"):
        if schema.get(name):
            return _example(schema[name][0], definitions)
    kind = schema.get("type", "object")
    kind = str(kind[0] if isinstance(kind, list) else kind).lower()
    if kind == "object":
        required = schema.get("required") or schema.get("properties", {})
        return {name: _example(schema["properties"][name], definitions) for name in required}
    if kind == "array":
        return [_example(schema.get("items", {"type": "string"}), definitions)]
    return _EXAMPLES[kind]


def _functions(tool: Any) -> list[Any]:
    return getattr(tool, "function_declarations", None) or []


def _parameters(declared: Any) -> Json:
    if declared.parameters_json_schema:
        schema: Json = declared.parameters_json_schema
        return schema
    return _dump(declared.parameters) if declared.parameters else {}


def _text(config: Any) -> str:
    """Return a reply that fits the output schema, if there is one."""
    schema = config.response_json_schema
    if config.response_schema is not None:
        given = config.response_schema
        schema = _dump(given) if isinstance(given, types.Schema) else TypeAdapter(given).json_schema()
    return json.dumps(example(schema)) if schema else "Done."


def _call(name: str, args: Json) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


def _dump(value: Any) -> Json:
    dumped: Json = value.model_dump(mode="json", exclude_none=True)
    return dumped
