"""The base class of toolsets, which can offer different tools depending on the context."""

import abc
import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from waystation.core.errors import InvalidTool
from waystation.core.naming import with_article
from waystation.tools import BaseTool, FunctionTool, ReadonlyContext, ToolContext
from waystation.tools.threads import run_in_thread

_CACHED_INVOCATIONS = 64


@runtime_checkable
class ToolPredicate(Protocol):
    """A function that decides whether a toolset offers a tool in a given context."""

    def __call__(self, tool: BaseTool, readonly_context: ReadonlyContext | None = None) -> bool:
        """Return whether to offer the tool to the model."""
        ...


class BaseToolset(abc.ABC):
    """Base class for your own toolsets. Implement `get_tools` to return the tools.

    `get_tools` runs before each model call and again before each tool call, possibly in a different process, so its
    result should depend only on the context. A subclass does not have to call `super().__init__()`.
    """

    tool_filter: ToolPredicate | Collection[str] | None = None
    tool_name_prefix: str | None = None
    name: str | None = None
    """The toolset's name in records and for approvers, as the origin of its tools. It defaults to the prefix or,
    without a prefix, to the name of the class."""
    optional: bool = False
    """Whether the model is called without the toolset's tools while the toolset is not available."""
    _use_invocation_cache: bool = False
    """Whether to call `get_tools` only once per invocation and process, as in ADK."""

    def __init__(
        self,
        *,
        tool_filter: ToolPredicate | Collection[str] | None = None,
        tool_name_prefix: str | None = None,
        optional: bool = False,
    ) -> None:
        """Set the options that all toolsets share.

        Args:
            tool_filter: Names of the tools to offer, without the prefix, or a function that decides for each tool.
                Implementations of `get_tools` apply the filter by calling `_is_tool_selected`.
            tool_name_prefix: Prefix for all tool names. An underscore separates the prefix and the name.
            optional: Whether the model is called without the toolset's tools while the toolset is not available. By
                default, the invocation is held.
        """
        self.tool_filter = tool_filter
        self.tool_name_prefix = tool_name_prefix
        self.optional = optional

    @abc.abstractmethod
    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[Any]:
        """Return the tools for a context, or all tools if there is no context. Names do not include the prefix.

        If this method raises `ConnectionError`, `TimeoutError` or another `OSError`, or a connection error of httpx or
        aiohttp, the model call is retried and then held until the toolset is available, unless the toolset is
        `optional`. After any other exception, the model is called without the toolset's tools.
        """

    async def get_tools_with_prefix(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the tools under the names that the model uses, which include the prefix."""
        invocation = readonly_context.invocation_id if readonly_context is not None else ""
        # Create the cache here rather than in `__init__`, because a subclass might not call `super().__init__()`.
        cached: OrderedDict[str, list[BaseTool]] = self.__dict__.setdefault("_tools_by_invocation", OrderedDict())
        if self._use_invocation_cache and invocation in cached:
            return list(cached[invocation])
        # ADK requires `async def get_tools`. Accept a plain `def` too, in a thread, because it may parse a document.
        is_async = inspect.iscoroutinefunction(self.get_tools)
        result: Any = (
            self.get_tools(readonly_context) if is_async else await run_in_thread(self.get_tools, readonly_context)
        )
        listed = await result if inspect.isawaitable(result) else result
        if not isinstance(listed, Collection) or isinstance(listed, str | Mapping):
            raise InvalidTool(
                type(self).__name__, f"`get_tools` returned {with_article(listed)}; return a list of tools."
            )
        for tool in listed:
            if not callable(tool) and not isinstance(tool, BaseTool):
                raise InvalidTool(
                    type(self).__name__,
                    f"`get_tools` returned a list that contains {with_article(tool)}; return BaseTools and functions.",
                )
        tools = [tool if isinstance(tool, BaseTool) else FunctionTool(tool) for tool in listed]
        if self.tool_name_prefix:
            tools = [_rename(tool, f"{self.tool_name_prefix}_{tool.name}") for tool in tools]
        if self._use_invocation_cache and invocation:
            cached[invocation] = tools
            while len(cached) > _CACHED_INVOCATIONS:
                cached.popitem(last=False)
        return list(tools)

    async def close(self) -> None:  # noqa: B027  # most toolsets hold no resources
        """Release the toolset's resources when its worker stops. The toolset may be used again afterwards."""

    async def process_llm_request(  # noqa: B027  # most toolsets change nothing
        self, *, tool_context: ToolContext, llm_request: Any
    ) -> None:
        """Modify a model request before the toolset's tools modify it."""

    def get_auth_config(self) -> Any:
        """Return the `AuthConfig` of the credential that the toolset needs, or None if it does not need one."""
        return None

    def setting_problems(self) -> list[str]:
        """Return one sentence for each invalid setting."""
        problems = []
        if not isinstance(self.tool_name_prefix, str | None):
            problems.append(f"`tool_name_prefix` is {self.tool_name_prefix!r}; use a string.")
        if not isinstance(self.name, str | None):
            problems.append(f"`name` is {self.name!r}; use a string.")
        if getattr(self, "approval", None) is not None:
            problems.append("it has an `approval`, which only tools have; use an ApprovalRule that names its tools.")
        names = isinstance(self.tool_filter, Collection) and not isinstance(self.tool_filter, str)
        if not (self.tool_filter is None or callable(self.tool_filter) or names):
            problems.append(f"`tool_filter` is {self.tool_filter!r}; use a list of names, or a function that decides.")
        return problems

    def origin_name(self) -> str:
        """Return the name that identifies the toolset as the origin of its tools."""
        return self.name or self.tool_name_prefix or type(self).__name__

    def can_list(self, name: str) -> bool:
        """Return whether a tool with this name may be one of the toolset, which depends on the prefix."""
        return name.startswith(f"{self.tool_name_prefix}_" if self.tool_name_prefix else "")

    def _is_tool_selected(self, tool: BaseTool, readonly_context: ReadonlyContext | None) -> bool:
        """Return whether `tool_filter` selects a tool. The filter sees tool names without the prefix."""
        if not self.tool_filter:
            return True
        if isinstance(self.tool_filter, Collection):
            return tool.name in self.tool_filter
        return bool(self.tool_filter(tool, readonly_context))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _rename(tool: BaseTool, name: str) -> BaseTool:
    """Return a copy of a tool that models see under the name `name`."""
    declare: Callable[[], Any] = tool._get_declaration

    def declaration() -> Any:
        declared = declare()
        if declared is None:
            return None
        # A tool written for ADK returns a genai FunctionDeclaration instead of a dictionary.
        return {**declared, "name": name} if isinstance(declared, dict) else declared.model_copy(update={"name": name})

    renamed = copy.copy(tool)
    renamed.name = name
    renamed._get_declaration = declaration  # type: ignore[method-assign]  # only this copy has another name
    return renamed
