"""The interface of models, which take a request and either return a response or raise a `ModelError`.

Contents and declarations are plain JSON in genai's camelCase form. Adapters that need types can call
`google.genai.types.Content.model_validate`. Callbacks use a different class,
`waystation.models.llm_request.LlmRequest`.
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
    """The model name that the agent specifies, such as `gemini-2.5-flash`."""
    contents: Sequence[JsonObject]
    """The conversation, oldest content first. The engine's cache shares these objects; copy them before you change
    them."""
    system_instruction: str | None = None
    tools: Sequence[JsonObject] = ()
    """Function declarations: `{"name", "description", "parametersJsonSchema"}`."""
    native_tools: Sequence[JsonObject] = ()
    """Tools that the provider runs. Each is a genai Tool as JSON, such as `{"googleSearch": {}}`."""
    config: JsonObject = field(default_factory=dict)
    """The agent's `generate_content_config` as JSON, without tools and the system instruction. If the agent has an
    `output_schema`, `responseMimeType` and `responseJsonSchema` are added."""
    attempt: int = 1
    """The number of this attempt at the call, starting at 1. Attempts on workers that crashed are counted too."""

    def genai_tools(self) -> list[JsonObject]:
        """Return all tools as genai JSON: one Tool with the function declarations, then the provider's own tools."""
        declared = [{"functionDeclarations": list(self.tools)}] if self.tools else []
        return [*declared, *self.native_tools]


class BaseLlm(abc.ABC):
    """Base class of models. Pass an instance as an agent's `model`, or pass a model name instead."""

    @abc.abstractmethod
    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response.

        `on_text` may be called with chunks of text as they arrive.

        Raises:
            ModelRefused: The request is invalid, so a retry cannot succeed.
            ModelOverloaded: The call failed, but a retry may succeed.
        """

    async def close(self) -> None:  # noqa: B027  # most models have nothing to release
        """Release connections. The worker calls this method once, when it stops."""
