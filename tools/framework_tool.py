"""Tools of other frameworks, whose arguments are described by a model or a schema of their own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.core import JsonObject
from waystation.tools import (
    ArgumentsRefused,
    BaseTool,
    FunctionTool,
    ToolContext,
    argument_mistakes,
    declaration,
    flattened,
    invoke,
    on_vertex,
    settled,
)


class FrameworkTool(FunctionTool):
    """A tool of another framework; `func` is called with the arguments that fit its schema, by name."""

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        name: str,
        description: str,
        schema: JsonObject,
        arguments: type[BaseModel] | None,
    ) -> None:
        """Wrap `func`.

        Args:
            func: What is called.
            name: How models call it.
            description: What models are told about it.
            schema: JSON schema of the arguments.
            arguments: Model that tells arguments that fit from others; None when only the schema knows.
        """
        super().__init__(func)
        self.name, self.description = name, description
        self._schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
        self._arguments = arguments

    @settled
    def _get_declaration(self) -> JsonObject | None:
        schema = self._schema if self._schema.get("properties") else None
        return declaration(self.name, self.description, flattened(schema) if on_vertex() else schema)

    def refused(self, args: JsonObject) -> ArgumentsRefused | None:
        """Return the answer to arguments that do not fit, None when they do."""
        missing = [name for name in self._schema.get("required", ()) if name not in args]
        if missing:
            return ArgumentsRefused.missing(self.name, missing)
        if self._arguments is not None:
            try:
                self._arguments.model_validate(args)
            except ValidationError as error:
                annotations = {name: field.annotation for name, field in self._arguments.model_fields.items()}
                return ArgumentsRefused.wrong(self.name, argument_mistakes(error, annotations))
        return None

    def taken(self, args: JsonObject) -> JsonObject:
        """Return the arguments that the schema knows."""
        known = self._schema.get("properties", {})
        return args if self._schema.get("additionalProperties") else {key: args[key] for key in args if key in known}

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments that the schema knows; None when they would be refused."""
        return None if self.refused(args) else self.taken(args)

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Return arguments that a person gives instead of those that were shown, once they fit the schema.

        Raises:
            ValueError: They do not fit; the text says which and why.
        """
        fitting = BaseTool.edited(self, args, shown)
        if refused := self.refused(fitting):
            raise ValueError("; ".join(refused["error"].splitlines()[1:-1]))
        return fitting

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function. Arguments that do not fit are answered, not raised, as `ArgumentsRefused`."""
        args = args or {}
        return self.refused(args) or await invoke(self.func, inspect.signature(self.func).bind(**self.taken(args)))
