"""Web search for enterprises, run by Vertex AI."""

from waystation.tools import NativeTool


class EnterpriseWebSearchTool(NativeTool):
    """Web search with the promises that enterprises need; on Vertex AI."""

    name = "enterprise_web_search"
    title = "Enterprise Web Search tool"
    tool = {"enterpriseWebSearch": {}}


enterprise_web_search_tool = enterprise_web_search = EnterpriseWebSearchTool()
