"""LangChain's tools. They are run by LangChain's own methods, so that its callbacks and error handling work."""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import BaseModel

from waystation.core import JsonObject
from waystation.tools import ArgumentsRefused, FunctionTool, ToolContext, invoke
from waystation.tools.framework_tool import FrameworkTool


class LangchainTool(FunctionTool):
    """A LangChain tool as a tool of an agent, or any object with a name, a description and a method `run`."""

    def __init__(self, tool: Any, name: str | None = None, description: str | None = None) -> None:
        """Wrap `tool`; `name` and `description` replace its own.

        Raises:
            ValueError: The object has neither `run` nor `_run`, is a class, or takes what nobody gives it here.
        """
        if isinstance(tool, type):
            raise ValueError(f"{tool.__name__} is a class; wrap an object of it: LangchainTool({tool.__name__}(…)).")
        if not hasattr(tool, "run") and not hasattr(tool, "_run"):
            raise ValueError("Tool must be a Langchain tool, have a 'run' or '_run' method.")
        super().__init__(_function_of(tool))
        self.name = name if name is not None else getattr(tool, "name", None) or self.name
        if description is not None or getattr(tool, "description", None):
            self.description = tool.description if description is None else description
        self._return_direct = bool(getattr(tool, "return_direct", False))
        self._foreign = _foreign(tool, self.name, self.description)

    def _get_declaration(self) -> JsonObject | None:
        return super()._get_declaration() if self._foreign is None else self._foreign._get_declaration()

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments as predicates see them."""
        own = super().seen if self._foreign is None else self._foreign.seen
        return own(args, tool_context)

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Return arguments that a person gives instead of those that were shown."""
        own = super().edited if self._foreign is None else self._foreign.edited
        return own(args, shown)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run the tool; one with `return_direct` has the last word, unless its answer is an error."""
        if self._foreign is None:
            result = await super().run_async(args=args, tool_context=tool_context)
        else:
            result = await self._foreign.run_async(args=args, tool_context=tool_context)
        failed = isinstance(result, ArgumentsRefused) or (isinstance(result, dict) and result.get("error"))
        if self._return_direct and not failed:
            tool_context.actions.skip_summarization = True
        return result


class _LangchainRun(FrameworkTool):
    """LangChain's `arun`, which takes all arguments as one dictionary."""

    takes_id = False
    """Whether LangChain is to give the tool the id of the call (`InjectedToolCallId`)."""

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run the tool as LangChain's `ainvoke` does, which takes some arguments for a whole call."""
        if refused := self.refused(args or {}):
            return refused
        from langchain_core.runnables import ensure_config

        further: dict[str, Any] = {"config": ensure_config()}
        if self.takes_id:
            further["tool_call_id"] = tool_context.function_call_id or ""
        bound = inspect.signature(self.func).bind(self.taken(args or {}), **further)
        result = await invoke(self.func, bound)
        # With an id LangChain makes a message of what the tool returns.
        return getattr(result, "content", result) if self.takes_id else result


def _function_of(tool: Any) -> Callable[..., Any]:
    """Return the function behind a tool, as ADK finds it."""
    if _is(tool, "StructuredTool"):
        function: Callable[..., Any] = tool.func or tool.coroutine
        return function
    own: Callable[..., Any] = tool._run if hasattr(tool, "_run") else tool.run
    return own


def _foreign(tool: Any, name: str, description: str) -> FrameworkTool | None:
    """Return how a LangChain tool is run; None for an object that only looks like one."""
    if not _is(tool, "BaseTool"):
        return None
    known = tool.args_schema
    if known is None and tool.args.keys() == {"tool_input"}:  # a Tool that takes one text
        schema = {"type": "object", "properties": tool.args, "required": ["tool_input"]}
    else:
        shown = tool.tool_call_schema
        schema = shown if isinstance(shown, dict) else shown.model_json_schema()
    arguments = known if isinstance(known, type) and issubclass(known, BaseModel) else None
    takes_id = False
    if arguments is not None and (injected := arguments.model_fields.keys() - schema.get("properties", {}).keys()):
        takes_id = _takes_id(arguments, injected, name)
        arguments = tool.tool_call_schema
    made = _LangchainRun(tool.arun, name=name, description=description, schema=schema, arguments=arguments)
    made.takes_id = takes_id
    return made


def _takes_id(arguments: type[BaseModel], injected: Collection[str], name: str) -> bool:
    """Whether one of the arguments that no model gives is the id of the call.

    Raises:
        ValueError: Another one has to be given.
    """
    from langchain_core.tools import InjectedToolCallId

    fields = {each: arguments.model_fields[each] for each in injected}
    ids = [each for each, field in fields.items() if any(_is_a(one, InjectedToolCallId) for one in field.metadata)]
    lacking = sorted(each for each, field in fields.items() if field.is_required() and each not in ids)
    if lacking:
        raise ValueError(
            f"Tool {name!r}: {lacking[0]!r} is left to LangChain's caller to inject, and Waystation injects only the "
            "id of the call (InjectedToolCallId). Give it a default, or wrap a function that takes a ToolContext."
        )
    return bool(ids)


def _is_a(annotation: object, kind: type) -> bool:
    return isinstance(annotation, kind) or (isinstance(annotation, type) and issubclass(annotation, kind))


def _is(tool: object, kind: str) -> bool:
    # Looked up, not imported: who has one of its tools has imported LangChain already.
    return isinstance(tool, getattr(sys.modules.get("langchain_core.tools"), kind, ()))
