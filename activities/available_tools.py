"""The tools that an agent's model may call at this moment: ADK's own, then the agent's."""

from collections.abc import Mapping

from waystation.activities.contexts import Contexts
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.memoize import memoize
from waystation.agents.tree import transfer_targets
from waystation.tools.base_tool import BaseTool
from waystation.tools.native_tool import NativeTool
from waystation.tools.output_schema import SetModelResponseTool
from waystation.tools.toolbox import toolbox
from waystation.tools.transfer import TransferToAgentTool


async def tools_for(
    agent: LlmAgent, contexts: Contexts, *, wanted: str | None = None, failed: list[str] | None = None
) -> dict[str, BaseTool]:
    """Return the tools by name. `wanted` and `failed` are as for `toolbox`."""
    limit = contexts.limits.toolset_timeout
    return _adk_tools(agent) | await toolbox(agent, contexts.readonly, wanted=wanted, failed=failed, limit=limit)


def _adk_tools(agent: LlmAgent) -> dict[str, BaseTool]:
    """Return the tools that ADK gives to an agent."""
    schema = agent.output_schema if agent.tools else None
    targets = [target.name for target in transfer_targets(agent)]

    def make() -> dict[str, BaseTool]:
        tools: list[BaseTool] = [SetModelResponseTool(schema)] if schema else []
        if targets:
            tools.append(TransferToAgentTool(targets))
        return {tool.name: tool for tool in tools}

    return memoize(agent, "_adk_tools", (schema, targets), make)


def callable_tools(tools: Mapping[str, BaseTool]) -> dict[str, BaseTool]:
    """Return the tools that a model may call by name, without those that its provider runs."""
    return {name: tool for name, tool in tools.items() if not isinstance(tool, NativeTool)}


def unknown_tool(name: str, tools: Mapping[str, BaseTool]) -> str:
    """Return ADK's answer to a call of a tool that does not exist. Source: adk-semantics 1.6."""
    known = ", ".join(callable_tools(tools)) or "none"
    return (
        f"Invoking `{name}()` failed as no tool with that name is available. The tools you can call are: {known}. "
        "You could retry, but it is IMPORTANT that you only call a tool from that list."
    )
