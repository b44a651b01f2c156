"""Built-in tools that the model provider runs. They do not have a declaration and never run on a worker.

Each one becomes a genai Tool in the model request. The genai Tool is stored as JSON, because importing genai's types
takes about a second.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from waystation.core.payload import JsonObject
from waystation.tools import BaseTool, ReadonlyContext, ToolContext

if TYPE_CHECKING:
    from waystation.models.llm_request import EditableRequest

_GEMINI = re.compile(
    r"(models/|projects/[^/]+/locations/[^/]+/publishers/[^/]+/models/|apigee/([^/]+/){0,2}|(?!projects/).*/)?gemini-.*"
)


def is_gemini_model(model: str) -> bool:
    """Return whether a model name is a Gemini model, or True if ADK_DISABLE_GEMINI_MODEL_ID_CHECK is set."""
    if os.environ.get("ADK_DISABLE_GEMINI_MODEL_ID_CHECK", "").strip().lower() in ("1", "true", "yes", "on"):
        return True
    return _GEMINI.fullmatch(model) is not None


class NativeTool(BaseTool):
    """A tool that Gemini's provider runs. Subclass it to use a provider tool that does not have its own class here."""

    title: str = ""
    """The tool's name in error messages."""
    tool: JsonObject = {}
    """The genai Tool as JSON, such as `{"googleSearch": {}}`."""
    model: str | None = None
    """The model to call instead of the agent's model, or None to keep the agent's model."""

    def __init__(self, *, name: str | None = None, description: str | None = None) -> None:
        """Initialize the tool. `name` defaults to the class attribute. Models see neither name nor description."""
        name = name or self.name
        super().__init__(name=name, description=description or name)

    def native_tool(self, model: str | None, context: ReadonlyContext) -> JsonObject:
        """Return the genai Tool as JSON for a request to `model`.

        If the agent uses a model object, `model` is None and is not checked.

        Raises:
            ValueError: `model` is not a Gemini model. The message is the same as in ADK.
        """
        if model is not None and not is_gemini_model(model):
            raise ValueError(f"{self.title} is not supported for model {model}")
        return self._tool(context)

    def _tool(self, context: ReadonlyContext) -> JsonObject:
        return self.tool

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: "EditableRequest") -> None:
        """Add the tool to a model request, as in ADK."""
        from google.genai import types

        if self.model is not None:
            llm_request.model = self.model
        tool = types.Tool.model_validate(self.native_tool(llm_request.model, tool_context))
        llm_request.config.tools = [*(llm_request.config.tools or ()), tool]

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Always raise RuntimeError, because only the model provider can run the tool."""
        raise RuntimeError(f"`{self.name}` cannot be called here, because the model's provider runs it.")


def refuse_bypass(bypass: bool, name: str) -> None:
    if bypass:
        raise ValueError(
            f"`{name}` does not support `bypass_multi_tools_limit`, and models before Gemini 3 cannot combine it with "
            "other tools; move the tool to a separate agent, and add that agent as an AgentTool."
        )
