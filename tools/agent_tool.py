"""Agents as tools."""

import json
from typing import Any

from tools.base import BaseTool
from tools.context import ToolContext
from tools.declaration import declaration
from waystation.agents.agent import BaseAgent
from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"request": {"type": "string"}},
    "required": ["request"],
}


class AgentTool(BaseTool):
    """An agent that another agent calls like a tool; its answer is the tool's result.

    The agent runs as an invocation of its own, so it may itself wait for people, for as long as it takes.
    """

    def __init__(self, agent: BaseAgent, skip_summarization: bool = False) -> None:
        """Wrap `agent`; with `skip_summarization` the calling agent's model is not called with its answer."""
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"Expected an agent, got {type(agent).__name__}")
        super().__init__(name=agent.name, description=agent.description)
        self.agent = agent
        self.skip_summarization = skip_summarization

    def _get_declaration(self) -> JsonObject | None:
        return declaration(self.name, self.description, _SCHEMA)

    def message_for(self, args: JsonObject) -> str:
        """Return what the agent is told. Source: adk-semantics 4.2."""
        request = args.get("request")
        return request if isinstance(request, str) else json.dumps(args, sort_keys=True, ensure_ascii=False)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Refuse: the workflow starts the agent as a child, and no tool can do that."""
        raise InvalidTool(
            self.name,
            "an AgentTool cannot be run from inside a tool, since its agent is a child of the invocation; "
            "list it in the `tools` of an agent, so that the model calls it.",
        )
