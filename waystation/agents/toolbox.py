"""List an agent's tools, either as declared or with its toolsets expanded for a given context."""

import asyncio
import itertools
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import structlog

from waystation.agents import BaseAgent
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import ActivitySettings
from waystation.core.errors import AuthoringError, InvalidTool, ToolNameTaken, WaystationError
from waystation.core.naming import with_article
from waystation.tools import (
    AgentTool,
    BaseTool,
    BaseToolset,
    FunctionTool,
    ReadonlyContext,
    RequestInputTool,
    declare,
    find_author_line,
)
from waystation.tools.memoize import memoize

log = structlog.get_logger(__name__)

RESERVED_NAMES = frozenset(
    {
        "adk_request_confirmation",
        "adk_request_credential",
        "adk_request_input",
        "finish_task",
        "set_model_response",
        "transfer_to_agent",
    }
)
"""Names of calls that ADK defines. `exit_loop` is not reserved, because ADK's guide has users define it themselves."""
FRAMEWORK_NAMES = RESERVED_NAMES | {
    "adk_run_code",
    "exit_loop",
    "get_user_choice",
    "load_artifacts",
    "load_memory",
    "preload_memory",
}
"""Names that the tools of toolsets cannot have, because models and readers would take them for the framework's own."""

# MCP's rule without slashes and leading digits. Adapters replace names that their provider refuses. A tool's name is
# also part of an activity type.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_CACHE = "__waystation_tools__"
_WARNED = "__waystation_warned__"
MAX_WARNINGS = 100
"""Number of warnings about the tools of one toolset. A server may list other names each time."""
DECLARED = "declared"
"""The origin of the tools that an agent's definition lists. That of other tools is `toolset:` and a name."""
_NEVER_ASKS = "its `approval` or `require_confirmation` would have no effect;"
CLOSE_TIMEOUT_S = 10.0
"""Time limit for closing one toolset, as in ADK."""

_DEFAULT_LIMIT = ActivitySettings().toolset_timeout

UNAVAILABLE = frozenset({"ClientConnectionError", "CredentialStoreError", "OSError", "StoreFailed", "TransportError"})
"""Names of the exceptions that mean that a toolset is not available, including subclasses such as ConnectionError and
TimeoutError. They are compared by name because aiohttp and httpx, which define two of them, may not be installed."""


class ToolMap(dict[str, BaseTool]):
    """Tools by name."""

    def __init__(self, tools: Mapping[str, BaseTool] = MappingProxyType({}), origins: Mapping[str, str] | None = None):
        super().__init__(tools)
        self.origins = dict(origins or {})
        """The origin of each tool, by the tool's name. The framework's own tools have none."""


@dataclass(frozen=True, slots=True)
class ToolsetFailure:
    """A toolset that did not list its tools."""

    description: str
    """A sentence that names the toolset and the cause."""
    must_wait: bool
    """Whether a model call waits for the toolset, because it is required and not available."""


def _items(agent: BaseAgent) -> list[Any]:
    """Return `agent.tools`, which is empty for agents other than LlmAgents."""
    items: list[Any] = getattr(agent, "tools", [])
    return items


def tools_of(agent: BaseAgent) -> dict[str, BaseTool]:
    """Return an agent's declared tools by name, in the order of `agent.tools`. Toolsets are not expanded.

    Raises:
        InvalidTool: An item of `agent.tools` is not a tool, or its name is invalid.
        ToolNameTaken: Two tools have the same name.
    """
    return {entry.name: entry for entry in entries_of(agent) if isinstance(entry, BaseTool)}


def toolsets_of(agent: BaseAgent) -> list[BaseToolset]:
    """Return an agent's toolsets in the order of `agent.tools`."""
    return [entry for entry in _items(agent) if isinstance(entry, BaseToolset)]


def entries_of(agent: BaseAgent) -> tuple[BaseTool | BaseToolset, ...]:
    """Return an agent's tools and toolsets in the order of `agent.tools`. Functions become FunctionTools.

    The same objects are returned until `agent.tools` changes.

    Raises:
        InvalidTool: An item of `agent.tools` is not a tool, or its name is invalid.
        ToolNameTaken: Two tools have the same name.
    """

    def resolve() -> tuple[BaseTool | BaseToolset, ...]:
        entries, problems = resolve_tools(agent)
        if problems:
            raise problems[0]
        return tuple(entries)

    # Compare by identity, because tools may define `__eq__`. The entries keep the items alive, so IDs stay unique.
    return memoize(agent, _CACHE, [id(item) for item in _items(agent)], resolve)


def resolve_tools(agent: BaseAgent) -> tuple[list[BaseTool | BaseToolset], list[AuthoringError]]:
    """Return an agent's tools and toolsets, and the problems found in `agent.tools`."""
    tools: list[BaseTool | BaseToolset] = []
    problems: list[AuthoringError] = []
    names: set[str] = set()
    for item in _items(agent):
        if isinstance(item, BaseToolset):
            tools.append(item)
            continue
        try:
            tool = _convert_to_tool(item)
        except InvalidTool as error:
            problems.append(error)
            continue
        if not isinstance(tool, RequestInputTool) and (problem := name_problem(tool.name)):
            problems.append(InvalidTool(tool.name, problem))
        if tool.name in names:
            problems.append(ToolNameTaken(agent.name, tool.name))
        names.add(tool.name)
        tools.append(tool)
    return tools, problems


def _convert_to_tool(item: object) -> BaseTool:
    if isinstance(item, BaseTool):
        kind = type(item).__name__
        if not hasattr(item, "name"):
            raise InvalidTool(kind, "its `__init__` must begin with `super().__init__(name=..., description=...)`.")
        if not isinstance(item.name, str):
            raise InvalidTool(kind, f"`name` is {reprlib.repr(item.name)}; use a string.")
        return item
    if isinstance(item, type) and issubclass(item, BaseTool | BaseToolset):
        raise InvalidTool(item.__name__, "`tools` contains the class; use an instance of it.")
    if isinstance(item, type):
        raise InvalidTool(item.__name__, "`tools` contains the class; use a function that creates an instance.")
    if not callable(item):
        raise InvalidTool(
            reprlib.repr(item), f"`tools` contains {with_article(item)}; use functions, BaseTools and BaseToolsets."
        )
    return FunctionTool(item)


def name_problem(name: str) -> str | None:
    """Return the reason why a tool cannot have this name, or None if the name is valid."""
    if name in RESERVED_NAMES:
        return "the name is reserved for the framework; rename the function."
    if not NAME.fullmatch(name):
        return (
            "models do not accept this name; start it with a letter or an underscore, and use at most 128 "
            "letters, digits, `_`, `.`, `:` and `-`. Replace a lambda with a `def`."
        )
    return None


def agents_below(
    root: BaseAgent, *, with_plugins: bool = False, called: bool = True
) -> Iterator[tuple[str, BaseAgent]]:
    """Yield each agent in a tree once, with its place in the tree. The tree may contain cycles.

    Args:
        root: The root of the tree.
        with_plugins: Whether to skip agents that can be reached only through AgentTools with `include_plugins=False`.
        called: Whether to include agents that can be reached only through AgentTools.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, BaseAgent]] = [(root.name, root)]
    while waiting:
        place, agent = waiting.pop(0)
        if id(agent) in seen:
            continue
        seen.add(id(agent))
        yield place, agent
        children: Sequence[object] = agent.sub_agents  # users may change the list without validation
        below = [child for child in children if isinstance(child, BaseAgent)]
        waiting.extend((f"{place}.sub_agents[{i}]", child) for i, child in enumerate(below))
        for i, tool in enumerate(_items(agent) if called else ()):
            is_reached = isinstance(tool, AgentTool) and (tool.include_plugins or not with_plugins)
            if is_reached and isinstance(tool.agent, BaseAgent):
                waiting.append((f"{place}.tools[{i}]", tool.agent))


def tool_problems(tool: BaseTool) -> Iterator[InvalidTool]:
    """Yield the reasons why a tool cannot be offered to a model."""
    yield from (InvalidTool(tool.name, text) for text in tool.setting_problems())
    try:
        is_hidden = declare(tool) is None
    except InvalidTool as error:
        yield error
        return
    asks = tool.approval is not None or tool.require_confirmation
    if isinstance(tool, AgentTool) and asks:
        yield InvalidTool(tool.name, f"{_NEVER_ASKS} set it on the tools of the agent {tool.agent.name!r}.")
    elif is_hidden and asks:
        yield InvalidTool(tool.name, f"{_NEVER_ASKS} remove it, because no model calls this tool.")
    if isinstance(getattr(getattr(tool, "func", None), "approval", None), ApprovalPolicy):
        yield InvalidTool(
            tool.name, "its function has an attribute `approval`, which has no effect; set `approval` of the tool."
        )


async def list_tools(
    agent: BaseAgent,
    context: Callable[[], ReadonlyContext],
    *,
    wanted: str | None = None,
    failed: list[ToolsetFailure] | None = None,
    limit: timedelta = _DEFAULT_LIMIT,
) -> ToolMap:
    """Return an agent's tools by name, in the order of `agent.tools`, with toolsets expanded.

    Toolsets that raise an exception and toolset tools without a valid declaration are left out. Others choose the names
    of a toolset's tools, so such a tool never replaces a declared tool or a tool of an earlier toolset.

    Args:
        agent: The agent whose tools to list.
        context: Creates a context. Called once for each toolset.
        wanted: Name of the only tool that the caller needs. Toolsets that cannot contain that tool are skipped, because
            listing their tools may require network access.
        failed: A list that receives the toolsets that raised an exception or exceeded `limit`.
        limit: Time limit for each toolset.

    Raises:
        InvalidTool: An item of `agent.tools` is not a tool, or its name is invalid.
        ToolNameTaken: Two tools that are not part of a toolset have the same name.
    """
    tools, failures, declared = ToolMap(), [] if failed is None else failed, tools_of(agent)
    for entry, origin in zip(entries_of(agent), list_origins(agent), strict=True):
        if isinstance(entry, BaseTool):
            listed = [entry]
        elif wanted is None or (wanted not in declared and entry.can_list(wanted)):
            listed = await _list_usable_tools(entry, agent, context(), failures, limit)
        else:
            continue
        for tool in listed:
            if tool is not entry and (tool.name in declared or tool.name in tools):
                _warn_once(entry, "tool_name.taken", agent.name, tool.name, remedy="give the toolset a prefix")
                continue
            tools[tool.name], tools.origins[tool.name] = tool, origin
    return tools


def list_origins(agent: BaseAgent) -> list[str]:
    """Return the origin of the tools of each item of `agent.tools`.

    An origin depends on names in the agent's definition, and not on where code or a server is. Toolsets with the same
    name are numbered.
    """
    origins = list[str]()
    for entry in entries_of(agent):
        origin = name = DECLARED if isinstance(entry, BaseTool) else f"toolset:{entry.origin_name()}"
        numbers = itertools.count(2)
        while origin in origins and origin != DECLARED:  # a name may also look like a number was added to it
            origin = f"{name}#{next(numbers)}"
        origins.append(origin)
    return origins


async def _list_usable_tools(
    toolset: BaseToolset, agent: BaseAgent, context: ReadonlyContext, failures: list[ToolsetFailure], limit: timedelta
) -> list[BaseTool]:
    """Return a toolset's usable tools, or an empty list if the toolset raises an exception."""
    kind = type(toolset).__name__
    try:
        async with asyncio.timeout(limit.total_seconds()):
            tools = await toolset.get_tools_with_prefix(context)
    except Exception as error:  # noqa: BLE001  # user code, or an unreachable server
        # Messages of errors that are not our own may quote credentials.
        reason = {"reason": str(error)} if isinstance(error, WaystationError) else {"place": find_author_line(error)}
        prefix = {"prefix": toolset.tool_name_prefix} if toolset.tool_name_prefix else {}
        log.warning(
            "toolset.failed", agent=agent.name, toolset=kind, error_type=type(error).__name__, **prefix, **reason
        )
        failures.append(_describe_failure(toolset, error))
        return []
    usable = []
    for tool in tools:
        if problem := _find_problem(tool, agent):
            _warn_once(toolset, "tool.left_out", agent.name, tool.name, toolset=kind, problem=problem)
        else:
            usable.append(tool)
    return usable


def _warn_once(toolset: BaseTool | BaseToolset, event: str, agent: str, tool: str, /, **facts: str) -> None:
    """Log a warning about a tool of a toolset, but not again, because tools are listed before each model call."""
    warned = vars(toolset).setdefault(_WARNED, set())
    if (event, agent, tool) not in warned and len(warned) < MAX_WARNINGS:
        warned.add((event, agent, tool))
        log.warning(event, agent=agent, tool=tool, **facts)


def _describe_failure(toolset: BaseToolset, error: Exception) -> ToolsetFailure:
    prefix = f" with prefix {toolset.tool_name_prefix!r}" if toolset.tool_name_prefix else ""
    cause = str(error) if isinstance(error, WaystationError) else f"{type(error).__name__} at {find_author_line(error)}"
    is_unavailable = any(kind.__name__ in UNAVAILABLE for kind in type(error).__mro__)
    return ToolsetFailure(
        f"Toolset {type(toolset).__name__}{prefix} did not list its tools: {cause.rstrip('.')}.",
        must_wait=is_unavailable and not toolset.optional,
    )


def _find_problem(tool: BaseTool, agent: BaseAgent) -> str | None:
    """Return the reason why a tool from a toolset cannot be offered, or None if it is usable."""
    if tool.name in FRAMEWORK_NAMES:
        return "the name belongs to the framework; give the toolset a prefix, or add the tool to the agent's `tools`."
    if isinstance(tool, AgentTool) and all(found is not tool.agent for _, found in agents_below(agent)):
        # An AgentTool's agent would run as a child workflow, but workers serve only agents that they can find without
        # toolsets.
        return "a toolset cannot contain an AgentTool; add the AgentTool to the agent's `tools`."
    if problem := name_problem(tool.name):
        return problem
    return "; ".join(error.problem for error in tool_problems(tool)) or None


async def close_toolsets(roots: Iterable[BaseAgent], *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Close all toolsets in these agent trees concurrently. Log those that raise an exception or exceed `timeout_s`."""
    found = {
        id(toolset): toolset for root in roots for _, agent in agents_below(root) for toolset in toolsets_of(agent)
    }
    await asyncio.gather(*(_close(toolset, timeout_s) for toolset in found.values()))


async def _close(toolset: BaseToolset, timeout_s: float) -> None:
    kind = type(toolset).__name__
    closing = asyncio.create_task(_try_close(toolset))
    # Do not use asyncio.timeout, which would wait forever for a toolset that suppresses cancellation.
    done, _ = await asyncio.wait((closing,), timeout=timeout_s)
    if not done:
        closing.cancel()
        log.warning("toolset.close_timed_out", toolset=kind, timeout_s=timeout_s)
    elif (error := closing.result()) is not None:
        log.warning("toolset.close_failed", toolset=kind, error_type=type(error).__name__)


async def _try_close(toolset: BaseToolset) -> Exception | None:
    try:
        await toolset.close()
    except Exception as error:  # noqa: BLE001  # user code; the other toolsets are closed anyway
        return error
    return None
