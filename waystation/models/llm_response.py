"""The response of a model."""

import copy
from dataclasses import dataclass, replace
from typing import Any

from waystation.core.budget import Usage
from waystation.core.payload import JsonObject


@dataclass(kw_only=True, slots=True)
class LlmResponse:
    """The content of a model's reply, or the reason why there is none. Callbacks may change or replace it."""

    content: Any = None
    """A genai Content as JSON, without nulls but with all parts, including unknown ones. Callbacks receive a
    `google.genai.types.Content` instead, and may return one."""
    finish_reason: str | None = None
    error_code: str | None = None
    """The reason why the reply is not usable: a block reason, a finish reason such as SAFETY, or
    MODEL_RETURNED_NO_CONTENT. None if it is usable."""
    error_message: str | None = None
    usage: Usage | None = None
    model_version: str | None = None
    model: str | None = None
    """The name of the model that answered, if the adapter chose among several."""
    custom_metadata: JsonObject | None = None
    """This field and the ones below exist for ADK callbacks. Only usage, grounding and citation metadata are
    recorded."""
    grounding_metadata: Any = None
    citation_metadata: Any = None
    usage_metadata: Any = None
    partial: bool | None = None
    turn_complete: bool | None = None
    interrupted: bool | None = None

    def get_function_calls(self) -> list[Any]:
        """Return the function calls in the content, as genai objects if the content is one, otherwise as JSON."""
        return _in_parts(self.content, "function_call", "functionCall")

    def get_function_responses(self) -> list[Any]:
        """Return the function responses in the content, as genai objects if the content is one, otherwise as JSON."""
        return _in_parts(self.content, "function_response", "functionResponse")

    def model_copy(self, *, update: JsonObject | None = None, deep: bool = False) -> "LlmResponse":
        """Return a copy. ADK callbacks call this method because ADK's class is a pydantic model."""
        return replace(copy.deepcopy(self) if deep else self, **(update or {}))


def _in_parts(content: Any, name: str, key: str) -> list[Any]:
    if isinstance(content, dict):
        return [part[key] for part in content.get("parts") or () if part.get(key)]
    return [value for part in getattr(content, "parts", None) or () if (value := getattr(part, name, None))]
