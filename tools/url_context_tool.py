"""Web pages from the conversation, read by the model's provider."""

from waystation.tools import NativeTool


class UrlContextTool(NativeTool):
    """Lets the provider read web pages whose URLs are in the conversation."""

    name = "url_context"
    title = "Url context tool"
    tool = {"urlContext": {}}


url_context = UrlContextTool()
