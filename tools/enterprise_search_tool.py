"""The built-in tool for Web Grounding for Enterprise on Vertex AI."""

from waystation.tools import NativeTool


class EnterpriseWebSearchTool(NativeTool):
    """A built-in tool for web search under Google's enterprise terms. Available only on Vertex AI."""

    name = "enterprise_web_search"
    title = "Enterprise Web Search tool"
    tool = {"enterpriseWebSearch": {}}


enterprise_web_search_tool = enterprise_web_search = EnterpriseWebSearchTool()
