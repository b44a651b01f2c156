"""Reading of web pages that the conversation names, by the model's provider."""

from waystation.tools import NativeTool


class UrlContextTool(NativeTool):
    """Reading of web pages that the conversation names."""

    name = "url_context"
    title = "Url context tool"
    tool = {"urlContext": {}}


url_context = UrlContextTool()
