"""JSON schemas: made of what authors give, and checked against values.

Nothing is ever fetched: a reference leads into the schema, or nowhere.
"""

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
