"""Agents as tools."""

import json
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.agents import BaseAgent, LlmAgent
from waystation.agents.memoize import memoize
from waystation.core import InvalidTool, JsonObject, to_plain_json
from waystation.tools import ArgumentsRejected, BaseTool, ToolContext, declaration, on_vertex, validation_mistakes

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"request": {"type": "string"}},
    "required": ["request"],
}


class AgentTool(BaseTool):
    """An agent that another agent calls like a tool. Its answer is the tool's result.

    The agent runs as an invocation of its own, so its calls may wait for approvers without a time limit.
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
            agent: Any agent. Its name and description become the tool's.
            skip_summarization: Whether to skip the model call that would process the answer.
            include_plugins: Whether the app's plugins also apply to the agent.
            propagate_grounding_metadata: Accepted for compatibility with ADK; grounding metadata is not recorded.
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
        """The input schema of the agent, or of the first agent that it runs. Source: adk-semantics 4.1."""
        first = self._llm_agent(0)
        return first.input_schema if first else None

    @property
    def has_output_schema(self) -> bool:
        """Whether the agent, or the last agent that it runs, has an output schema; the answer is then an object."""
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
        taken = (
            memoize(self, "_taken", schema, lambda: to_plain_json(schema.model_json_schema())) if schema else _SCHEMA
        )
        declared = declaration(self.name, self.description, taken)
        if on_vertex():
            declared["responseJsonSchema"] = {"type": "object" if self.has_output_schema else "string"}
        # As in ADK, even an empty description is declared; functions without a docstring have none.
        return {**declared, "description": self.description}

    def message_for(self, args: JsonObject) -> str:
        """Return the message for the agent. Source: adk-semantics 4.2.

        Raises:
            ValueError: The arguments do not match the agent's input schema; the text is for the model.
        """
        if self.input_schema is not None:
            try:
                return self.input_schema.model_validate(args).model_dump_json(exclude_none=True)
            except ValidationError as error:
                wrong = [
                    f"Parameter '{path or 'arguments'}': validation error: {reason}"
                    for path, reason in validation_mistakes(error)[:10]
                ]
                raise ValueError(ArgumentsRejected.wrong(self.name, wrong)["error"]) from None
        request = args.get("request")
        return request if isinstance(request, str) else json.dumps(args, sort_keys=True, ensure_ascii=False)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Raise InvalidTool: the workflow starts the agent as a child, which no tool can do."""
        raise InvalidTool(
            self.name,
            "an AgentTool cannot run inside another tool, since its agent is a child of the invocation; "
            "add it to the `tools` of an agent, so that the model calls it.",
        )
