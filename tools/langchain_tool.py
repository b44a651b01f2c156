"""Wrap LangChain tools. LangChain's own methods run them, so that its callbacks and error handling work."""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import BaseModel

from waystation.core.payload import JsonObject
from waystation.tools import ArgumentsRejected, FunctionTool, ToolContext, invoke
from waystation.tools.framework_tool import FrameworkTool


class LangchainTool(FunctionTool):
    """A tool that wraps a LangChain tool, or any object that has a name, a description and a `run` method."""

    def __init__(self, tool: Any, name: str | None = None, description: str | None = None) -> None:
        """Wrap `tool`. If given, `name` and `description` replace those of the LangChain tool.

        Raises:
            ValueError: `tool` is a class, has neither `run` nor `_run`, or requires an argument that only a LangChain
                application can inject.
        """
        if isinstance(tool, type):
            raise ValueError(f"{tool.__name__} is a class; wrap an instance: LangchainTool({tool.__name__}(…)).")
        if not hasattr(tool, "run") and not hasattr(tool, "_run"):
            raise ValueError("Tool must be a Langchain tool, have a 'run' or '_run' method.")
        super().__init__(_find_function(tool))
        self.name = name if name is not None else getattr(tool, "name", None) or self.name
        if description is not None or getattr(tool, "description", None):
            self.description = tool.description if description is None else description
        self._return_direct = bool(getattr(tool, "return_direct", False))
        self._delegate = _create_delegate(tool, self.name, self.description)

    def _get_declaration(self) -> JsonObject | None:
        return super()._get_declaration() if self._delegate is None else self._delegate._get_declaration()

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments to pass to predicates, or None if they are invalid."""
        method = super().seen if self._delegate is None else self._delegate.seen
        return method(args, tool_context)

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Validate arguments that an approver edited and convert them for the tool."""
        method = super().edited if self._delegate is None else self._delegate.edited
        return method(args, shown)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run the tool. If it has `return_direct` set, a successful result ends the turn without another model call."""
        if self._delegate is None:
            result = await super().run_async(args=args, tool_context=tool_context)
        else:
            result = await self._delegate.run_async(args=args, tool_context=tool_context)
        failed = isinstance(result, ArgumentsRejected) or (isinstance(result, dict) and result.get("error"))
        if self._return_direct and not failed:
            tool_context.actions.skip_summarization = True
        return result


class _LangchainRun(FrameworkTool):
    """A tool that calls LangChain's `arun`, passing all arguments as one dictionary."""

    takes_id = False
    """Whether the tool has an `InjectedToolCallId` parameter that receives the call ID."""

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run the tool the way LangChain's `ainvoke` does."""
        if refused := self.refused(args or {}):
            return refused
        from langchain_core.runnables import ensure_config

        options: dict[str, Any] = {"config": ensure_config()}
        if self.takes_id:
            options["tool_call_id"] = tool_context.function_call_id or ""
        bound = inspect.signature(self.func).bind(self.taken(args or {}), **options)
        result = await invoke(self.func, bound)
        # If it receives a call ID, LangChain wraps the tool's result in a message.
        return getattr(result, "content", result) if self.takes_id else result


def _find_function(tool: Any) -> Callable[..., Any]:
    """Return the function that a LangChain tool wraps, selected the way ADK does."""
    if _is(tool, "StructuredTool"):
        function: Callable[..., Any] = tool.func or tool.coroutine
        return function
    own: Callable[..., Any] = tool._run if hasattr(tool, "_run") else tool.run
    return own


def _create_delegate(tool: Any, name: str, description: str) -> FrameworkTool | None:
    """Return a tool that runs `tool` through LangChain, or None if `tool` is not a LangChain tool."""
    if not _is(tool, "BaseTool"):
        return None
    known = tool.args_schema
    if known is None and tool.args.keys() == {"tool_input"}:  # a Tool with one text parameter
        schema = {"type": "object", "properties": tool.args, "required": ["tool_input"]}
    else:
        call_schema = tool.tool_call_schema
        schema = call_schema if isinstance(call_schema, dict) else call_schema.model_json_schema()
    arguments = known if isinstance(known, type) and issubclass(known, BaseModel) else None
    takes_id = False
    if arguments is not None and (injected := arguments.model_fields.keys() - schema.get("properties", {}).keys()):
        takes_id = _takes_id(arguments, injected, name)
        arguments = tool.tool_call_schema
    delegate = _LangchainRun(tool.arun, name=name, description=description, schema=schema, arguments=arguments)
    delegate.takes_id = takes_id
    return delegate


def _takes_id(arguments: type[BaseModel], injected: Collection[str], name: str) -> bool:
    """Return whether one of the injected arguments is the call ID.

    Raises:
        ValueError: A different injected argument is required.
    """
    from langchain_core.tools import InjectedToolCallId

    fields = {key: arguments.model_fields[key] for key in injected}
    ids = [key for key, field in fields.items() if any(_is_a(item, InjectedToolCallId) for item in field.metadata)]
    missing = sorted(key for key, field in fields.items() if field.is_required() and key not in ids)
    if missing:
        raise ValueError(
            f"Tool {name!r}: the argument {missing[0]!r} must be injected, but Waystation injects only the call ID "
            "(InjectedToolCallId). Give the argument a default, or wrap a function that takes a ToolContext."
        )
    return bool(ids)


def _is_a(annotation: object, kind: type) -> bool:
    return isinstance(annotation, kind) or (isinstance(annotation, type) and issubclass(annotation, kind))


def _is(tool: object, kind: str) -> bool:
    # Look the module up instead of importing it: if the tool comes from LangChain, LangChain is already imported.
    return isinstance(tool, getattr(sys.modules.get("langchain_core.tools"), kind, ()))
