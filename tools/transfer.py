"""The tool that transfers the conversation to another agent."""

from collections.abc import Sequence

from waystation.core.payload import JsonObject
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
    """The `transfer_to_agent` tool with a list of valid agent names. Every agent that can transfer has this tool."""

    def __init__(self, agent_names: Sequence[str]) -> None:
        super().__init__(transfer_to_agent)
        self._agent_names = list(agent_names)

    @cacheable
    def _get_declaration(self) -> JsonObject | None:
        declared = super()._get_declaration()
        assert declared is not None
        # As in ADK, the parameter is described only in the tool's description.
        name: JsonObject = declared["parametersJsonSchema"]["properties"]["agent_name"]
        name.pop("description", None)
        name["enum"] = self._agent_names
        return declared
