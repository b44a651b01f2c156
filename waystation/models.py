"""What a model is to Waystation: a request in, a response or a `ModelError` out.

Adapters live in `activities/models`; a model of your own subclasses `BaseLlm`. Contents and declarations are plain JSON
in genai's camelCase form; `google.genai.types.Content.model_validate` reads them when an adapter wants types.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from waystation.core.payload import JsonObject
from waystation.core.wire import Usage


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
    config: JsonObject = field(default_factory=dict)
    """The agent's `generate_content_config` as JSON, without tools and system instruction."""
    attempt: int = 1
    """1 for the first attempt at this call, counting the attempts of crashed workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmResponse:
    """What the model said, or why it said nothing."""

    content: JsonObject | None = None
    """A genai Content as JSON, nulls left out; all parts are kept, unknown ones too."""
    finish_reason: str | None = None
    error_code: str | None = None
    """Set when there is no usable content: a block reason, a finish reason such as SAFETY, or
    MODEL_RETURNED_NO_CONTENT."""
    error_message: str | None = None
    usage: Usage | None = None
    model_version: str | None = None


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
