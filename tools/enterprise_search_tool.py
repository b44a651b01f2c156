"""Web search for enterprises, run by Vertex AI."""

from typing import TYPE_CHECKING

from waystation.tools.native_tool import NativeTool

if TYPE_CHECKING:
    pass


class EnterpriseWebSearchTool(NativeTool):
    """Web search with the promises that enterprises need; on Vertex AI."""

    title = "Enterprise Web Search tool"
    tool = {"enterpriseWebSearch": {}}

    def __init__(self) -> None:
        super().__init__(name="enterprise_web_search", description="enterprise_web_search")


enterprise_web_search_tool = enterprise_web_search = EnterpriseWebSearchTool()
