"""Agents as tools."""

import json
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject, to_plain_json
from waystation.tools import ArgumentsRejected, BaseTool, ToolContext, declaration, on_vertex, validation_mistakes
from waystation.tools.memoize import memoize

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"request": {"type": "string"}},
    "required": ["request"],
}


@runtime_checkable
class CallableAgent(Protocol):
    """An agent that a tool can call."""

    name: str
    description: str

    @property
    def request_schema(self) -> type[BaseModel] | None:
        """The schema of the message that starts the agent, or None for plain text."""

    @property
    def answers_with_object(self) -> bool:
        """Whether the agent's answer is an object rather than text."""


class AgentTool(BaseTool):
    """A tool that lets an agent call another agent. The called agent's answer is the tool's result.

    The called agent runs as a separate invocation, so its calls can wait for approvers without a time limit.
    """

    def __init__(
        self,
        agent: CallableAgent,
        skip_summarization: bool = False,
        *,
        include_plugins: bool = True,
        propagate_grounding_metadata: bool = False,
    ) -> None:
        """Wrap `agent`.

        Args:
            agent: The agent to call. The tool takes its name and description.
            skip_summarization: Whether to skip the model call that normally follows to process the answer.
            include_plugins: Whether the app's plugins also apply to the agent.
            propagate_grounding_metadata: Accepted for compatibility with ADK, but has no effect. Grounding metadata is
                not recorded.
        """
        if not isinstance(agent, CallableAgent):
            raise TypeError(f"Expected an agent, got {type(agent).__name__}")
        super().__init__(name=agent.name, description=agent.description)
        self.agent = agent
        self.skip_summarization = skip_summarization
        self.include_plugins = include_plugins
        self.propagate_grounding_metadata = propagate_grounding_metadata

    def _get_declaration(self) -> JsonObject | None:
        schema = self.agent.request_schema
        taken = (
            memoize(self, "_taken", schema, lambda: to_plain_json(schema.model_json_schema())) if schema else _SCHEMA
        )
        declared = declaration(self.name, self.description, taken)
        if on_vertex():
            declared["responseJsonSchema"] = {"type": "object" if self.agent.answers_with_object else "string"}
        # As in ADK, an agent's description is declared even if it is empty. (Functions without a docstring omit it.)
        return {**declared, "description": self.description}

    def message_for(self, args: JsonObject) -> str:
        """Return the message that starts the agent.

        Raises:
            ValueError: The arguments do not match the agent's input schema. The error message is sent to the model.
        """
        if self.agent.request_schema is not None:
            try:
                return self.agent.request_schema.model_validate(args).model_dump_json(exclude_none=True)
            except ValidationError as error:
                wrong = [
                    f"Parameter '{path or 'arguments'}': validation error: {reason}"
                    for path, reason in validation_mistakes(error)[:10]
                ]
                raise ValueError(ArgumentsRejected.wrong(self.name, wrong)["error"]) from None
        request = args.get("request")
        return request if isinstance(request, str) else json.dumps(args, sort_keys=True, ensure_ascii=False)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Always raise InvalidTool. Only the workflow can start the agent, as a child of the invocation."""
        raise InvalidTool(
            self.name,
            "an AgentTool cannot run inside another tool, because its agent runs as a child of the invocation; "
            "add the AgentTool to an agent's `tools` so that the model can call it.",
        )
