"""The tools that an agent has at one moment, toolsets expanded."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import structlog

from waystation.agents.base_agent import BaseAgent
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.core.errors import InvalidTool, WaystationError
from waystation.core.settings import ActivitySettings
from waystation.tools.agent_tool import AgentTool
from waystation.tools.authoring import agents_below, entries_of, name_problem, toolsets_of
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.places import place_of

log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""How long a toolset may take to close. Source: adk-semantics 10."""

_DEFAULT_LIMIT = ActivitySettings().toolset_timeout


async def toolbox(
    agent: LlmAgent,
    context: Callable[[], ReadonlyContext],
    *,
    wanted: str | None = None,
    failed: list[str] | None = None,
    limit: timedelta = _DEFAULT_LIMIT,
) -> dict[str, BaseTool]:
    """Return the tools of `agent` by name, in the agent's order, as they are in the situation that `context` tells.

    It is called for each toolset.

    A toolset that raises is left out, and so is a tool of a toolset that no model could be told of. Of two tools with
    one name, the last one counts. Who wants but one tool says its name: then toolsets that cannot give it are not
    asked, since asking may need a network, and their tools are missing. `failed` gets the kinds of those that raised,
    or took longer than `limit`.

    Raises:
        InvalidTool: Something in `agent.tools` is not a tool, or its name cannot be used.
        ToolNameTaken: Two tools that are declared without a toolset have the same name.
    """
    tools: dict[str, BaseTool] = {}
    entries = entries_of(agent)
    if wanted is not None:
        entries = _candidates(entries, wanted)
    for entry in entries:
        given = [entry] if isinstance(entry, BaseTool) else await _given(entry, agent, context(), limit)
        if given is None:
            if failed is not None:
                failed.append(type(entry).__name__)
            continue
        for tool in given:
            if tool.name in tools:
                log.warning("tool_name.taken", agent=agent.name, tool=tool.name, remedy="give a toolset a prefix")
            tools[tool.name] = tool
    return tools


def _candidates(entries: Sequence[BaseTool | BaseToolset], wanted: str) -> tuple[BaseTool | BaseToolset, ...]:
    """Return those entries of which one may be, or give, the tool that counts under a name."""
    named = [i for i, entry in enumerate(entries) if isinstance(entry, BaseTool) and entry.name == wanted]
    last = named[-1] if named else -1
    return tuple(
        entry
        for i, entry in enumerate(entries)
        if isinstance(entry, BaseTool)
        or (i > last and wanted.startswith(f"{entry.tool_name_prefix}_" if entry.tool_name_prefix else ""))
    )


async def _given(
    toolset: BaseToolset, agent: LlmAgent, context: ReadonlyContext, limit: timedelta
) -> list[BaseTool] | None:
    """Return what a toolset gives, as far as it can be used; None when it raised."""
    kind = type(toolset).__name__
    try:
        async with asyncio.timeout(limit.total_seconds()):
            tools = await toolset.get_tools_with_prefix(context)
    except Exception as error:  # noqa: BLE001  # author's code, or a server that is not there
        # The text of other people's errors may quote credentials.
        reason = {"reason": str(error)} if isinstance(error, WaystationError) else {"place": place_of(error)}
        prefix = {"prefix": toolset.tool_name_prefix} if toolset.tool_name_prefix else {}
        log.warning(
            "toolset.failed", agent=agent.name, toolset=kind, error_type=type(error).__name__, **prefix, **reason
        )
        return None
    usable = []
    for tool in tools:
        problem = _problem(tool, agent)
        if problem is None:
            usable.append(tool)
        else:
            log.warning("tool.left_out", agent=agent.name, toolset=kind, tool=tool.name, problem=problem)
    return usable


def _problem(tool: BaseTool, agent: LlmAgent) -> str | None:
    """Return why a tool of a toolset cannot be offered, or None."""
    if isinstance(tool, AgentTool) and all(found is not tool.agent for _, found in agents_below(agent)):
        # Its agent would run as a child workflow, and workers only know agents that they find without a toolset.
        return "an agent cannot come from a toolset; put the AgentTool into the agent's `tools`."
    problem = name_problem(tool.name)
    if problem is not None:
        return problem
    try:
        declare(tool)
    except InvalidTool as error:
        return error.problem
    return "; ".join(tool.setting_problems()) or None


async def close_toolsets(roots: Iterable[BaseAgent], *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Close every toolset in these trees of agents, all at once. One that raises or hangs is logged and left."""
    found = {
        id(toolset): toolset
        for root in roots
        for _, agent in agents_below(root)
        if isinstance(agent, LlmAgent)
        for toolset in toolsets_of(agent)
    }
    await asyncio.gather(*(_close(toolset, timeout_s) for toolset in found.values()))


async def _close(toolset: BaseToolset, timeout_s: float) -> None:
    kind = type(toolset).__name__
    closing = asyncio.create_task(_closed(toolset))
    # Not asyncio.timeout: a toolset that swallows its cancellation would never be left.
    done, _ = await asyncio.wait((closing,), timeout=timeout_s)
    if not done:
        closing.cancel()
        log.warning("toolset.close_timed_out", toolset=kind, timeout_s=timeout_s)
    elif (error := closing.result()) is not None:
        log.warning("toolset.close_failed", toolset=kind, error_type=type(error).__name__)


async def _closed(toolset: BaseToolset) -> Exception | None:
    try:
        await toolset.close()
    except Exception as error:  # noqa: BLE001  # author's code; the other toolsets are closed all the same
        return error
    return None
