"""How Vertex AI differs from the Gemini API. Source: adk-semantics 1.2, Vertex variant."""

import os
from typing import Any


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
