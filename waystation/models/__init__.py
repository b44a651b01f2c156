"""What a model is to Waystation: a request in, a response or a `ModelError` out.

Adapters live in `activities/models`; a model of your own subclasses `BaseLlm`. Contents and declarations are plain JSON
in genai's camelCase form; `google.genai.types.Content.model_validate` reads them when an adapter wants types. The
request that callbacks may change is another class: `waystation.models.llm_request.LlmRequest`.
"""

import abc
import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from waystation.core.budget import Usage
from waystation.core.payload import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmRequest:
    """Everything one model call is given."""

    model: str
    """The model's name as the agent states it, such as `gemini-2.5-flash`."""
    contents: Sequence[JsonObject]
    """The conversation, oldest first. Shared with the engine's cache: copy before changing anything."""
    system_instruction: str | None = None
    tools: Sequence[JsonObject] = ()
    """Function declarations: `{"name", "description", "parametersJsonSchema"}`."""
    native_tools: Sequence[JsonObject] = ()
    """Tools that the provider runs itself, each a genai Tool as JSON, such as `{"googleSearch": {}}`."""
    config: JsonObject = field(default_factory=dict)
    """The agent's `generate_content_config` as JSON, without tools and system instruction; with an `output_schema`
    also `responseMimeType` and `responseJsonSchema`."""
    attempt: int = 1
    """1 for the first attempt at this call, counting the attempts of crashed workers."""

    def genai_tools(self) -> list[JsonObject]:
        """Return all tools as genai's JSON: one Tool with the function declarations, then the provider's own."""
        declared = [{"functionDeclarations": list(self.tools)}] if self.tools else []
        return [*declared, *self.native_tools]


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


class BaseLlm(abc.ABC):
    """A model that agents can name or hold."""

    @abc.abstractmethod
    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response.

        `on_text`, when given, may be called with pieces of text as they arrive.

        Raises:
            ModelRefused: The request is wrong; repeating it would not help.
            ModelOverloaded: Another attempt may succeed.
        """

    async def close(self) -> None:  # noqa: B027  # most models hold nothing
        """Release connections. Called once when the worker stops."""


def _in_parts(content: Any, name: str, key: str) -> list[Any]:
    if isinstance(content, dict):
        return [part[key] for part in content.get("parts") or () if part.get(key)]
    return [found for part in getattr(content, "parts", None) or () if (found := getattr(part, name, None))]


def __getattr__(name: str) -> Any:
    # Where ADK has it too. Not imported before it is asked for: a client needs no models.
    if name == "Gemini":
        return importlib.import_module("waystation.models.google_llm").Gemini
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
