"""The tools that an agent has at one moment, toolsets expanded."""

from tools.authoring import tools_of
from tools.base import BaseTool
from tools.readonly_context import ReadonlyContext
from waystation.agents.agent import LlmAgent


async def toolbox(agent: LlmAgent, context: ReadonlyContext) -> dict[str, BaseTool]:
    """Return the tools of `agent` by name, in the agent's order, as they are in the situation that `context` tells.

    Raises:
        InvalidTool: Something in `agent.tools` is not a tool, or its name cannot be used.
        ToolNameTaken: Two tools have the same name.
    """
    return tools_of(agent)
