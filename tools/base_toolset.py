"""The base class of toolsets, whose tools can depend on the context. Source: adk-semantics 10."""

import abc
import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from waystation.agents import ReadonlyContext
from waystation.core import InvalidTool, with_article
from waystation.tools import BaseTool, FunctionTool, ToolContext

_CACHED_INVOCATIONS = 64


@runtime_checkable
class ToolPredicate(Protocol):
    """Decides whether a toolset offers a tool in a context."""

    def __call__(self, tool: BaseTool, readonly_context: ReadonlyContext | None = None) -> bool:
        """Whether to offer the tool to the model."""
        ...


class BaseToolset(abc.ABC):
    """Base class for your own toolsets: return the tools from `get_tools`.

    `get_tools` runs before each model call and again before each of its tools runs, perhaps in another process. Its
    result should therefore depend only on the context. A subclass may omit `super().__init__()`.
    """

    tool_filter: ToolPredicate | Collection[str] | None = None
    tool_name_prefix: str | None = None
    _use_invocation_cache: bool = False
    """Whether `get_tools` runs only once per invocation and process, as in ADK."""

    def __init__(
        self,
        *,
        tool_filter: ToolPredicate | Collection[str] | None = None,
        tool_name_prefix: str | None = None,
    ) -> None:
        """Set the options that all toolsets share.

        Args:
            tool_filter: Names of the tools to offer, without prefix, or a function that decides. `get_tools` applies it
                with `_is_tool_selected`.
            tool_name_prefix: Prefix for all tool names, joined with an underscore.
        """
        self.tool_filter = tool_filter
        self.tool_name_prefix = tool_name_prefix

    @abc.abstractmethod
    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[Any]:
        """Return the tools for a context, under their own names; all tools without a context.

        If this raises, the model call runs without the toolset.
        """

    async def get_tools_with_prefix(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return copies of the tools under the names that the model uses."""
        invocation = readonly_context.invocation_id if readonly_context is not None else ""
        # Not created in `__init__`, which a subclass may not call.
        cached: OrderedDict[str, list[BaseTool]] = self.__dict__.setdefault("_tools_by_invocation", OrderedDict())
        if self._use_invocation_cache and invocation in cached:
            return list(cached[invocation])
        result: Any = self.get_tools(readonly_context)
        # Also accepts `def get_tools`, where ADK has `async def`.
        listed = await result if inspect.isawaitable(result) else result
        if not isinstance(listed, Collection) or isinstance(listed, str | Mapping):
            raise InvalidTool(
                type(self).__name__, f"`get_tools` returned {with_article(listed)}; return a list of tools."
            )
        for tool in listed:
            if not callable(tool) and not isinstance(tool, BaseTool):
                raise InvalidTool(
                    type(self).__name__,
                    f"`get_tools` returned a list with {with_article(tool)} in it; return BaseTools and functions.",
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
        """Release the toolset's resources. Called when its worker stops; the toolset may be used again afterwards."""

    async def process_llm_request(  # noqa: B027  # most toolsets change nothing
        self, *, tool_context: ToolContext, llm_request: Any
    ) -> None:
        """Change the request of a model call before its tools do."""

    def get_auth_config(self) -> Any:
        """Return the `AuthConfig` of the credential that the toolset needs, or None."""
        return None

    def setting_problems(self) -> list[str]:
        """Return the invalid settings, one sentence each."""
        problems = []
        if not isinstance(self.tool_name_prefix, str | None):
            problems.append(f"`tool_name_prefix` is {self.tool_name_prefix!r}; use a string.")
        names = isinstance(self.tool_filter, Collection) and not isinstance(self.tool_filter, str)
        if not (self.tool_filter is None or callable(self.tool_filter) or names):
            problems.append(f"`tool_filter` is {self.tool_filter!r}; use a list of names, or a function that decides.")
        return problems

    def _is_tool_selected(self, tool: BaseTool, readonly_context: ReadonlyContext | None) -> bool:
        """Whether `tool_filter` selects a tool, by its name without prefix."""
        if not self.tool_filter:
            return True
        if isinstance(self.tool_filter, Collection):
            return tool.name in self.tool_filter
        return bool(self.tool_filter(tool, readonly_context))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _rename(tool: BaseTool, name: str) -> BaseTool:
    """Return a copy of a tool that models call `name`."""
    declare: Callable[[], Any] = tool._get_declaration

    def declaration() -> Any:
        declared = declare()
        if declared is None:
            return None
        # Otherwise a genai FunctionDeclaration, from a tool written for ADK.
        return {**declared, "name": name} if isinstance(declared, dict) else declared.model_copy(update={"name": name})

    renamed = copy.copy(tool)
    renamed.name = name
    renamed._get_declaration = declaration  # type: ignore[method-assign]  # only this copy has another name
    return renamed
