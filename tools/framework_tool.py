"""The base class for tools from other frameworks, which define their own argument schema."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.core.payload import JsonObject
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
    """A tool from another framework. Calls `func` with the arguments in the tool's schema as keyword arguments."""

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
            name: The name that models see.
            description: The description that models see.
            schema: The JSON schema of the arguments.
            arguments: A pydantic model that validates the arguments, or None to skip this validation.
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
        """Return the error response for invalid arguments, or None if the arguments are valid."""
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
        """Return the arguments without those that the schema does not define."""
        known = self._schema.get("properties", {})
        return args if self._schema.get("additionalProperties") else {key: args[key] for key in args if key in known}

    def seen(self, args: JsonObject, tool_context: ToolContext) -> Mapping[str, Any] | None:
        """Return the arguments that the schema defines, or None if the arguments are invalid."""
        return None if self.refused(args) else self.taken(args)

    def edited(self, args: JsonObject, shown: JsonObject) -> JsonObject:
        """Validate arguments that an approver edited against the schema and return them.

        Raises:
            ValueError: Some arguments are invalid. The message lists them with the reasons.
        """
        valid = BaseTool.edited(self, args, shown)
        if refused := self.refused(valid):
            raise ValueError("; ".join(refused["error"].splitlines()[1:-1]))
        return valid

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function. If the arguments are invalid, return an `ArgumentsRejected` instead of raising."""
        args = args or {}
        return self.refused(args) or await invoke(self.func, inspect.signature(self.func).bind(**self.taken(args)))
