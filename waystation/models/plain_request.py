"""The request that models receive.

Contents and declarations are plain JSON in genai's camelCase form. Adapters that need types can call
`google.genai.types.Content.model_validate`. Callbacks use a different class,
`waystation.models.llm_request.EditableRequest`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from waystation.core.payload import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmRequest:
    """The complete input of one model call."""

    model: str
    """The model name that the agent specifies, such as `gemini-3.5-flash`."""
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
