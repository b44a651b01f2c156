"""What a model is: a request in, a response or a `ModelError` out.

Contents and declarations are plain JSON in genai's camelCase form; `google.genai.types.Content.model_validate` reads
them when an adapter wants types. The request that callbacks may change is another class,
`waystation.models.llm_request.LlmRequest`.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from waystation.core import JsonObject
from waystation.models.llm_response import LlmResponse


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
