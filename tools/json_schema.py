"""JSON schemas: made of what authors give, and checked against values.

Nothing is ever fetched: a reference leads into the schema, or nowhere.
"""

import os
from itertools import islice
from typing import Any

from pydantic import TypeAdapter

from waystation.core import JsonObject, plain

MAX_MISTAKES = 5
MAX_MISTAKE_CHARS = 200


def json_schema(schema: Any) -> JsonObject:
    """Return an output schema as JSON schema."""
    if isinstance(schema, dict):
        return dict(plain(schema))
    if not isinstance(schema, type) and hasattr(schema, "json_schema"):  # a genai Schema
        return dict(schema.json_schema.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dict(plain(TypeAdapter(schema).json_schema()))


def schema_problem(schema: JsonObject) -> str | None:
    """Return why something is no JSON schema; None when it is one."""
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        return _text_of(error)
    except RecursionError:
        return "it has no end"
    return None


def mistakes(schema: JsonObject, value: Any) -> list[str]:
    """Return what is wrong with a value, a few of many mistakes, one text each.

    Raises:
        ValueError: The schema cannot be used; the text says why.
    """
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if problem := schema_problem(schema):
        raise ValueError(problem)
    # With a registry of its own; without one the library would follow references to anywhere.
    checking = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
    try:
        return [_text_of(error) for error in islice(checking.iter_errors(value), MAX_MISTAKES)]
    except Unresolvable as error:
        raise ValueError(f"it refers to {error.ref!r}, which it does not have") from None
    except RecursionError:
        raise ValueError("it has no end") from None


def _text_of(error: Any) -> str:
    path = ".".join(map(str, error.absolute_path))
    text = f"{path}: {error.message}" if path else str(error.message)
    # A message begins with the value, and ends with what is wrong with it.
    half = MAX_MISTAKE_CHARS // 2
    return text if len(text) <= MAX_MISTAKE_CHARS else f"{text[:half]} … {text[-half:]}"


def on_vertex() -> bool:
    """Whether models are reached through Vertex AI, by the environment variables of google-genai."""
    vertex = os.environ.get("GOOGLE_GENAI_USE_VERTEXAI", "")
    return os.environ.get("GOOGLE_GENAI_USE_ENTERPRISE", vertex).lower() in ("1", "true")


def flattened(value: Any) -> Any:
    """Return a schema with `nullable` in place of a null among the choices, which Vertex AI refuses."""
    if isinstance(value, list):
        return [flattened(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: flattened(item) for key, item in value.items()}
    choices = schema.get("anyOf")
    if not isinstance(choices, list) or len(choices) < 2:
        return schema
    others = [choice for choice in choices if not (isinstance(choice, dict) and choice.get("type") == "null")]
    if len(others) != len(choices) - 1:
        return schema
    if len(others) > 1:
        return {**schema, "anyOf": others, "nullable": True}
    del schema["anyOf"]
    return {**schema, **others[0], "nullable": True}
