"""Reading of web pages that the conversation names, by the model's provider."""

from typing import TYPE_CHECKING

from waystation.tools.native_tool import NativeTool

if TYPE_CHECKING:
    pass


class UrlContextTool(NativeTool):
    """Reading of web pages that the conversation names."""

    title = "Url context tool"
    tool = {"urlContext": {}}

    def __init__(self) -> None:
        super().__init__(name="url_context", description="url_context")


url_context = UrlContextTool()
