"""The interface of models: a request in, a response or a `ModelError` out.

Contents and declarations are plain JSON in genai's camelCase form. Adapters that need types can call
`google.genai.types.Content.model_validate`. Callbacks change another class, `waystation.models.llm_request.LlmRequest`.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from waystation.core import JsonObject
from waystation.models.llm_response import LlmResponse


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmRequest:
    """The complete input of one model call."""

    model: str
    """The model name in the agent, such as `gemini-2.5-flash`."""
    contents: Sequence[JsonObject]
    """The conversation, oldest first. It is shared with the engine's cache; copy it before you change it."""
    system_instruction: str | None = None
    tools: Sequence[JsonObject] = ()
    """Function declarations: `{"name", "description", "parametersJsonSchema"}`."""
    native_tools: Sequence[JsonObject] = ()
    """Tools that the provider runs, each a genai Tool as JSON, such as `{"googleSearch": {}}`."""
    config: JsonObject = field(default_factory=dict)
    """The agent's `generate_content_config` as JSON, without tools and system instruction. Agents with an
    `output_schema` add `responseMimeType` and `responseJsonSchema`."""
    attempt: int = 1
    """1 for the first attempt at this call. Attempts of crashed workers count."""

    def genai_tools(self) -> list[JsonObject]:
        """Return all tools as genai's JSON: one Tool with the function declarations, then the provider's own."""
        declared = [{"functionDeclarations": list(self.tools)}] if self.tools else []
        return [*declared, *self.native_tools]


class BaseLlm(abc.ABC):
    """A model. Agents refer to it by name or hold an instance."""

    @abc.abstractmethod
    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response.

        `on_text` may be called with pieces of text as they arrive.

        Raises:
            ModelRefused: The request is invalid; a retry cannot succeed.
            ModelOverloaded: A retry may succeed.
        """

    async def close(self) -> None:  # noqa: B027  # most models have nothing to release
        """Release connections. The worker calls this once when it stops."""
