"""Where ADK has `google.adk.tools.enterprise_search_tool`."""

from tools.native import EnterpriseWebSearchTool, enterprise_web_search_tool

__all__ = ["EnterpriseWebSearchTool", "enterprise_web_search_tool"]
