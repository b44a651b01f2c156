"""The tool that transfers the conversation to another agent. Source: adk-semantics 9.1."""

from collections.abc import Sequence

from waystation.core import JsonObject
from waystation.tools import FunctionTool, ToolContext, cacheable


def transfer_to_agent(agent_name: str, tool_context: ToolContext) -> None:
    """Transfer the query to another agent.

    Use this tool to hand off control to another agent that is more suitable to
    answer the user's query according to the agent's description.

    Args:
      agent_name: the agent name to transfer to.
    """
    tool_context.actions.transfer_to_agent = agent_name


class TransferToAgentTool(FunctionTool):
    """`transfer_to_agent` with the valid agent names. Every agent with transfer targets has this tool."""

    def __init__(self, agent_names: Sequence[str]) -> None:
        super().__init__(transfer_to_agent)
        self._agent_names = list(agent_names)

    @cacheable
    def _get_declaration(self) -> JsonObject | None:
        declared = super()._get_declaration()
        assert declared is not None
        # As in ADK: only the tool's description describes the parameter.
        name: JsonObject = declared["parametersJsonSchema"]["properties"]["agent_name"]
        name.pop("description", None)
        name["enum"] = self._agent_names
        return declared
