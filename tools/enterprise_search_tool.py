"""Enterprise web search, run by Vertex AI."""

from waystation.tools import NativeTool


class EnterpriseWebSearchTool(NativeTool):
    """Web search with Google's enterprise terms. Vertex AI only."""

    name = "enterprise_web_search"
    title = "Enterprise Web Search tool"
    tool = {"enterpriseWebSearch": {}}


enterprise_web_search_tool = enterprise_web_search = EnterpriseWebSearchTool()
