"""Tools that the model's provider runs: they have no declaration, and no worker runs them.

Each becomes one genai Tool in the request. It is stored as JSON, since importing genai's types takes a second.
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
    """Whether a name is a Gemini model; always True while ADK_DISABLE_GEMINI_MODEL_ID_CHECK is set."""
    if os.environ.get("ADK_DISABLE_GEMINI_MODEL_ID_CHECK", "").strip().lower() in ("1", "true", "yes", "on"):
        return True
    return _GEMINI.fullmatch(model) is not None


class NativeTool(BaseTool):
    """A tool that Gemini's provider runs. Subclass it for a provider tool without a class."""

    title: str = ""
    """Name of the tool in error messages."""
    tool: JsonObject = {}
    """The genai Tool as JSON, such as `{"googleSearch": {}}`."""
    model: str | None = None
    """The model to call instead of the agent's, or None."""

    def __init__(self, *, name: str | None = None, description: str | None = None) -> None:
        """`name` defaults to the class attribute. Models see neither name nor description."""
        name = name or self.name
        super().__init__(name=name, description=description or name)

    def native_tool(self, model: str | None, context: ReadonlyContext) -> JsonObject:
        """Return the genai Tool as JSON for a request to `model`; None stands for a model object, which is not checked.

        Raises:
            ValueError: `model` is not a Gemini model; the text is ADK's.
        """
        if model is not None and not is_gemini_model(model):
            raise ValueError(f"{self.title} is not supported for model {model}")
        return self._tool(context)

    def _tool(self, context: ReadonlyContext) -> JsonObject:
        return self.tool

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: "LlmRequest") -> None:
        """Add the tool to a request, as in ADK."""
        from google.genai import types

        if self.model is not None:
            llm_request.model = self.model
        tool = types.Tool.model_validate(self.native_tool(llm_request.model, tool_context))
        llm_request.config.tools = [*(llm_request.config.tools or ()), tool]

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Raise RuntimeError: the provider runs the tool."""
        raise RuntimeError(f"`{self.name}` cannot be called: the model's provider runs it.")


def refuse_bypass(bypass: bool, name: str) -> None:
    if bypass:
        raise ValueError(
            f"`{name}` does not support `bypass_multi_tools_limit`, and models before Gemini 3 do not combine it with "
            "other tools; move it to a separate agent, and add that agent as an AgentTool."
        )
