"""Create JSON schemas from user-defined types, validate values, and adapt schemas for Vertex AI.

References are never fetched over the network, so they must point into the schema itself.
"""

import os
from itertools import islice
from typing import Any

from pydantic import TypeAdapter

from waystation.core.payload import JsonObject, to_plain_json

MAX_MISTAKES = 5
MAX_MISTAKE_CHARS = 200


def json_schema(schema: Any) -> JsonObject:
    """Return the JSON schema for a Python type, a genai Schema, or a dictionary that already is a schema."""
    if isinstance(schema, dict):
        return dict(to_plain_json(schema))
    if not isinstance(schema, type) and hasattr(schema, "json_schema"):  # a genai Schema
        return dict(schema.json_schema.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dict(to_plain_json(TypeAdapter(schema).json_schema()))


def schema_problem(schema: JsonObject) -> str | None:
    """Return the reason why a JSON schema is invalid, or None if it is valid."""
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        return _text_of(error)
    except RecursionError:
        return "it is infinitely recursive"
    return None


def find_mistakes(schema: JsonObject, value: Any) -> list[str]:
    """Validate a value and return a message for each error, up to five.

    Raises:
        ValueError: The schema is invalid. The message gives the reason.
    """
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if problem := schema_problem(schema):
        raise ValueError(problem)
    # Pass an empty registry, because by default jsonschema would fetch references over the network.
    validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
    try:
        return [_text_of(error) for error in islice(validator.iter_errors(value), MAX_MISTAKES)]
    except Unresolvable as error:
        raise ValueError(f"the reference {error.ref!r} cannot be resolved within the schema") from None
    except RecursionError:
        raise ValueError("it is infinitely recursive") from None


def _text_of(error: Any) -> str:
    path = ".".join(map(str, error.absolute_path))
    text = f"{path}: {error.message}" if path else str(error.message)
    # Shorten the middle, because a message begins with the value and ends with the reason.
    half = MAX_MISTAKE_CHARS // 2
    return text if len(text) <= MAX_MISTAKE_CHARS else f"{text[:half]} … {text[-half:]}"


def on_vertex() -> bool:
    """Return whether google-genai's environment variables select Vertex AI."""
    vertex = os.environ.get("GOOGLE_GENAI_USE_VERTEXAI", "")
    return os.environ.get("GOOGLE_GENAI_USE_ENTERPRISE", vertex).lower() in ("1", "true")


def flatten_for_vertex(value: Any) -> Any:
    """Replace a null choice in `anyOf`, which Vertex AI rejects, with `nullable`, and return the new schema."""
    if isinstance(value, list):
        return [flatten_for_vertex(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: flatten_for_vertex(item) for key, item in value.items()}
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
