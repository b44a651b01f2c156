"""The base class of tools from other frameworks, which bring their own argument schema."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.core import JsonObject
from waystation.tools import (
    ArgumentsRejected,
    BaseTool,
    FunctionTool,
    ToolContext,
    argument_mistakes,
    cacheable,
    declaration,
    flatten_for_vertex,
    invoke,
    on_vertex,
)


class FrameworkTool(FunctionTool):
    """A tool of another framework. `func` is called with the arguments of its schema, by name."""

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
            func: The function to call.
            name: Name for models.
            description: Description for models.
            schema: JSON schema of the arguments.
            arguments: pydantic model that validates the arguments, None without validation.
        """
        super().__init__(func)
        self.name, self.description = name, description
        self._schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
        self._arguments = arguments

    @cacheable
    def _get_declaration(self) -> JsonObject | None:
        schema = self._schema if self._schema.get("properties") else None
        return declaration(self.name, self.description, flatten_for_vertex(schema) if on_vertex() else schema)

    def refused(self, args: JsonObject) -> ArgumentsRejected | None:
        """Return the response to invalid arguments, None for valid ones."""
        missing = [name for name in self._schema.get("required", ()) if name not in args]
        if missing:
            return ArgumentsRejected.missing(self.name, missing)
        if self._arguments is not None:
            try:
                self._arguments.model_validate(args)
            except ValidationError as error:
                annotations = {name: field.annotation for name, field in self._arguments.model_fields.items()}
                return ArgumentsRejected.wrong(self.name, argument_mistakes(error, annotations))
        return None

    def taken(self, args: JsonObject) -> JsonObject:
        """Return the arguments that the schema contains."""
        known = self._schema.get("properties", {})
        return args if self._schema.get("additionalProperties") else {key: args[key] for key in args if key in known}

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments that the schema contains; None when they are invalid."""
        return None if self.refused(args) else self.taken(args)

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Return the arguments that an approver edited, validated with the schema.

        Raises:
            ValueError: Arguments are invalid; the text names them and the reasons.
        """
        valid = BaseTool.edited(self, args, shown)
        if refused := self.refused(valid):
            raise ValueError("; ".join(refused["error"].splitlines()[1:-1]))
        return valid

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function. Invalid arguments do not raise; they return `ArgumentsRefused`."""
        args = args or {}
        return self.refused(args) or await invoke(self.func, inspect.signature(self.func).bind(**self.taken(args)))
