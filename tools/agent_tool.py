"""Agents as tools."""

import json
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.agents import BaseAgent, LlmAgent
from waystation.agents.memoize import memoize
from waystation.core import InvalidTool, JsonObject, plain
from waystation.tools import ArgumentsRefused, BaseTool, ToolContext, declaration, on_vertex, validation_mistakes

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"request": {"type": "string"}},
    "required": ["request"],
}


class AgentTool(BaseTool):
    """An agent that another agent calls like a tool; its answer is the tool's result.

    The agent runs as an invocation of its own, so it may itself wait for people, for as long as it takes.
    """

    def __init__(
        self,
        agent: BaseAgent,
        skip_summarization: bool = False,
        *,
        include_plugins: bool = True,
        propagate_grounding_metadata: bool = False,
    ) -> None:
        """Wrap `agent`.

        Args:
            agent: Of any kind; its name and description become the tool's.
            skip_summarization: Whether the calling agent's model is not called with the answer.
            include_plugins: Whether the plugins of the app accompany the agent too.
            propagate_grounding_metadata: Accepted for ADK's sake; grounding metadata is not recorded.
        """
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"Expected an agent, got {type(agent).__name__}")
        super().__init__(name=agent.name, description=agent.description)
        self.agent = agent
        self.skip_summarization = skip_summarization
        self.include_plugins = include_plugins
        self.propagate_grounding_metadata = propagate_grounding_metadata

    @property
    def input_schema(self) -> type[BaseModel] | None:
        """What the agent takes: its own schema, or that of the first agent that it runs. Source: adk-semantics 4.1."""
        first = self._llm_agent(0)
        return first.input_schema if first else None

    @property
    def has_output_schema(self) -> bool:
        """Whether the answer is an object: by the agent's own schema, or that of the last agent that it runs."""
        last = self._llm_agent(-1)
        return last is not None and last.output_schema is not None

    def _llm_agent(self, position: int) -> LlmAgent | None:
        """Return the agent, or the first (0) or last (-1) agent with a model that it runs."""
        agent = self.agent
        while not isinstance(agent, LlmAgent):
            if not agent.sub_agents:
                return None
            agent = agent.sub_agents[position]
        return agent

    def _get_declaration(self) -> JsonObject | None:
        schema = self.input_schema
        taken = memoize(self, "_taken", schema, lambda: plain(schema.model_json_schema())) if schema else _SCHEMA
        declared = declaration(self.name, self.description, taken)
        if on_vertex():
            declared["responseJsonSchema"] = {"type": "object" if self.has_output_schema else "string"}
        # Also when it is empty, as in ADK; functions without a docstring have none.
        return {**declared, "description": self.description}

    def message_for(self, args: JsonObject) -> str:
        """Return what the agent is told. Source: adk-semantics 4.2.

        Raises:
            ValueError: The arguments do not fit the agent's input schema; the text is for the model.
        """
        if self.input_schema is not None:
            try:
                return self.input_schema.model_validate(args).model_dump_json(exclude_none=True)
            except ValidationError as error:
                wrong = [
                    f"Parameter '{path or 'arguments'}': validation error: {reason}"
                    for path, reason in validation_mistakes(error)[:10]
                ]
                raise ValueError(ArgumentsRefused.wrong(self.name, wrong)["error"]) from None
        request = args.get("request")
        return request if isinstance(request, str) else json.dumps(args, sort_keys=True, ensure_ascii=False)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Refuse: the workflow starts the agent as a child, and no tool can do that."""
        raise InvalidTool(
            self.name,
            "an AgentTool cannot be run from inside a tool, since its agent is a child of the invocation; "
            "list it in the `tools` of an agent, so that the model calls it.",
        )
