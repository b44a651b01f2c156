"""The built-in tool for reading web pages, which the model provider runs."""

from waystation.tools import NativeTool


class UrlContextTool(NativeTool):
    """A built-in tool that lets the model provider read web pages whose URLs appear in the conversation."""

    name = "url_context"
    title = "Url context tool"
    tool = {"urlContext": {}}


url_context = UrlContextTool()
