"""Declare an agent's output schema to the model, and validate answers.

An output schema can be a pydantic model, a list of a pydantic model, any other type, a dictionary, or a genai Schema.
As in ADK, answers are validated only for the first two.
"""

import inspect
import re
import typing
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from waystation.core.payload import JsonObject, decode_leniently, repair_json
from waystation.tools import BaseTool, Signature, ToolContext, cacheable, declaration, validation_mistakes

SET_MODEL_RESPONSE = "set_model_response"
OUTPUT_SCHEMA = "OUTPUT_SCHEMA"
"""Error code for an answer that does not match the output schema."""

_FENCE = re.compile(r"```[A-Za-z0-9_]*[ \t]*\n?")


def parse_answer_text(schema: Any, text: str) -> Any:
    """Parse an answer and return it as plain JSON, without fields of a pydantic model that are None.

    Raises:
        ValueError: The answer is not JSON or does not match the schema. The message does not quote any values.
    """
    text = _strip_fence(text)
    try:
        if _is_validated(schema):
            return _dump(TypeAdapter(schema).validate_json(text))
        return repair_json(decode_leniently(text))[0]
    except ValidationError as error:
        raise ValueError(explain_schema_errors(error)) from None
    except ValueError:
        raise ValueError("It is not JSON.") from None


def explain_schema_errors(error: ValidationError) -> str:
    """Return the first ten errors as one string that does not quote any values."""
    return "; ".join(f"{path or 'value'}: {reason}" for path, reason in validation_mistakes(error)[:10])


class SetModelResponseTool(BaseTool):
    """The tool that a model calls to return its structured answer if the agent has other tools too."""

    def __init__(self, output_schema: Any) -> None:
        self.output_schema = output_schema
        self._function = _create_function(output_schema)
        super().__init__(name=SET_MODEL_RESPONSE, description=inspect.cleandoc(self._function.__doc__ or ""))

    @cacheable
    def _get_declaration(self) -> JsonObject | None:
        return declaration(self.name, self.description, Signature(self._function, self.name).schema)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Return the answer as plain JSON, or an error so that the model can correct the answer."""
        if not _is_validated(self.output_schema):
            return args.get("response")
        answer = args.get("items", []) if _find_item_type(self.output_schema) else args
        try:
            return _dump(TypeAdapter(self.output_schema).validate_python(answer))
        except ValidationError as error:
            return ResponseRejected(
                error=f"Validation Error found:\n{explain_schema_errors(error)}\n"
                "Recall the set_model_response function correctly, "
                "fix the errors, and call it again with all required fields using the correct types."
            )


class ResponseRejected(dict[str, Any]):
    """The response to a structured answer that does not match the schema."""


def _create_function(schema: Any) -> Any:
    def set_model_response() -> str:
        """Set your final response using the required output schema.

        Use this tool to provide your final structured answer instead
        of outputting text directly.
        """
        return ""

    if _is_model(schema):
        parameters = [
            _create_parameter(
                name,
                Annotated[field.annotation, Field(description=field.description)],
                inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True),
            )
            for name, field in schema.model_fields.items()
        ]
    elif item := _find_item_type(schema):
        parameters = [_create_parameter("items", list[item])]  # type: ignore[valid-type]  # a type that is only known here
    else:
        untyped = isinstance(schema, dict) or not (isinstance(schema, type) or typing.get_origin(schema))
        parameters = [_create_parameter("response", dict if untyped else schema)]
    set_model_response.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as functools does
    return set_model_response


def _create_parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _is_model(schema: Any) -> bool:
    return isinstance(schema, type) and not typing.get_origin(schema) and issubclass(schema, BaseModel)


def _find_item_type(schema: Any) -> Any:
    """Return the item type if the schema is a list of a pydantic model, otherwise None."""
    args = typing.get_args(schema)
    return args[0] if typing.get_origin(schema) is list and args and _is_model(args[0]) else None


def _is_validated(schema: Any) -> bool:
    return _is_model(schema) or _find_item_type(schema) is not None


def _dump(value: Any) -> Any:
    if isinstance(value, list):
        return [_dump(item) for item in value]
    return repair_json(value.model_dump(mode="json", exclude_none=True))[0]


def _strip_fence(text: str) -> str:
    """Remove the code fence that models sometimes put around JSON."""
    stripped = text.strip()
    if len(stripped) < 6 or not (stripped.startswith("```") and stripped.endswith("```")):
        return text
    return _FENCE.sub("", stripped[:-3], count=1).strip()
