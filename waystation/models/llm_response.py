"""What a model replied."""

import copy
from dataclasses import dataclass, replace
from typing import Any

from waystation.core import JsonObject, Usage


@dataclass(kw_only=True, slots=True)
class LlmResponse:
    """What the model said, or why it said nothing. A callback may change it, or return one of its own."""

    content: Any = None
    """A genai Content as JSON, nulls left out; all parts are kept, unknown ones too. Callbacks are given, and may
    return, `google.genai.types.Content`."""
    finish_reason: str | None = None
    error_code: str | None = None
    """Set when there is no usable content: a block reason, a finish reason such as SAFETY, or
    MODEL_RETURNED_NO_CONTENT."""
    error_message: str | None = None
    usage: Usage | None = None
    model_version: str | None = None
    custom_metadata: JsonObject | None = None
    """Of this and what follows nothing is recorded; ADK's callbacks read it, pass it on and set it."""
    grounding_metadata: Any = None
    citation_metadata: Any = None
    usage_metadata: Any = None
    partial: bool | None = None
    turn_complete: bool | None = None
    interrupted: bool | None = None

    def get_function_calls(self) -> list[Any]:
        """Return the function calls in the content, as genai types when the content is one."""
        return _in_parts(self.content, "function_call", "functionCall")

    def get_function_responses(self) -> list[Any]:
        """Return the function responses in the content, as genai types when the content is one."""
        return _in_parts(self.content, "function_response", "functionResponse")

    def model_copy(self, *, update: JsonObject | None = None, deep: bool = False) -> "LlmResponse":
        """Return a copy, as pydantic's method of this name does, which callbacks for ADK call."""
        return replace(copy.deepcopy(self) if deep else self, **(update or {}))


def _in_parts(content: Any, name: str, key: str) -> list[Any]:
    if isinstance(content, dict):
        return [part[key] for part in content.get("parts") or () if part.get(key)]
    return [found for part in getattr(content, "parts", None) or () if (found := getattr(part, name, None))]
