"""Tools that the model's provider runs itself: they have no declaration, and nothing of them runs in a worker.

Each becomes one genai Tool in the request. It is kept as JSON, since genai's types take a second to import.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from waystation.agents import ReadonlyContext
from waystation.core import JsonObject
from waystation.tools import BaseTool, ToolContext

if TYPE_CHECKING:
    from waystation.models.llm_request import LlmRequest

_GEMINI = re.compile(
    r"(models/|projects/[^/]+/locations/[^/]+/publishers/[^/]+/models/|apigee/([^/]+/){0,2}|(?!projects/).*/)?gemini-.*"
)


def is_gemini_model(model: str) -> bool:
    """Whether a model's name is one of Gemini's; everything is while ADK_DISABLE_GEMINI_MODEL_ID_CHECK is set."""
    if os.environ.get("ADK_DISABLE_GEMINI_MODEL_ID_CHECK", "").strip().lower() in ("1", "true", "yes", "on"):
        return True
    return _GEMINI.fullmatch(model) is not None


class NativeTool(BaseTool):
    """A tool that a Gemini model's provider runs; subclass it for one that is missing here."""

    title: str = ""
    """How the tool is called in errors."""
    tool: JsonObject = {}
    """The genai Tool as JSON, such as `{"googleSearch": {}}`."""
    model: str | None = None
    """The model to call instead of the agent's, or None."""

    def __init__(self, *, name: str | None = None, description: str | None = None) -> None:
        """Take the class's own `name` unless another is given; models are told neither."""
        name = name or self.name
        super().__init__(name=name, description=description or name)

    def native_tool(self, model: str | None, context: ReadonlyContext) -> JsonObject:
        """Return the genai Tool as JSON, for a request to `model`; None for a model object, which knows best itself.

        Raises:
            ValueError: The model is not one of Gemini's; the text is ADK's.
        """
        if model is not None and not is_gemini_model(model):
            raise ValueError(f"{self.title} is not supported for model {model}")
        return self._tool(context)

    def _tool(self, context: ReadonlyContext) -> JsonObject:
        return self.tool

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: "LlmRequest") -> None:
        """Add the tool to a request, as ADK's tools do."""
        from google.genai import types

        if self.model is not None:
            llm_request.model = self.model
        tool = types.Tool.model_validate(self.native_tool(llm_request.model, tool_context))
        llm_request.config.tools = [*(llm_request.config.tools or ()), tool]

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Refuse: the provider runs the tool."""
        raise RuntimeError(f"`{self.name}` is run by the model's provider, and cannot be called.")


def refuse_bypass(bypass: bool, name: str) -> None:
    if bypass:
        raise ValueError(
            f"`{name}` cannot bypass the limit that earlier models than Gemini 3 put on other tools beside it; "
            "give it to an agent of its own, and that agent to yours as an AgentTool."
        )
