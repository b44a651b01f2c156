"""What Vertex AI is told beyond what the Gemini API is. Source: adk-semantics 1.2, Vertex variant."""

import collections.abc
import inspect
import os
import types
import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter

from waystation.core import Event, JsonObject, plain
from waystation.tools.functions import Schema, Signature, namespace_of, resolved

_GENERATORS = (collections.abc.Generator, collections.abc.AsyncGenerator)
_UNIONS = (typing.Union, types.UnionType)


def on_vertex() -> bool:
    """Whether models are reached through Vertex AI, by the environment variables of google-genai."""
    said = os.environ.get("GOOGLE_GENAI_USE_ENTERPRISE")
    if said is None:
        said = os.environ.get("GOOGLE_GENAI_USE_VERTEXAI", "")
    return said.lower() in ("1", "true")


def response_schema(signature: Signature) -> JsonObject | None:
    """Return the JSON schema of what a function returns; None when it does not say, or cannot be described."""
    annotation, function = signature.python.return_annotation, signature.function
    if annotation is inspect.Signature.empty or (isinstance(function, type) and issubclass(function, BaseModel)):
        return None
    try:
        adapter = _adapter(_output_of(resolved(annotation, namespace_of(function))))
        schema: JsonObject = plain(adapter.json_schema(schema_generator=Schema))
        return schema
    except Exception:  # noqa: BLE001  # a type's own schema hook can raise anything
        return None


def _output_of(annotation: Any) -> Any:
    """Return the type of the one value that a generator yields besides events; any other type as it is."""
    if typing.get_origin(annotation) not in _GENERATORS:
        return annotation
    yielded = typing.get_args(annotation)[0]
    members = typing.get_args(yielded) if typing.get_origin(yielded) in _UNIONS else (yielded,)
    outputs = tuple(member for member in members if member is not Event)
    return typing.Union[outputs] if outputs else Any  # noqa: UP007  # built from a list


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # models and dataclasses have a config of their own
        return TypeAdapter(annotation)


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
