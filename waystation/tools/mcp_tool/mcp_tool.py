"""Where ADK has `google.adk.tools.mcp_tool.mcp_tool`."""

from tools.mcp import MCPTool, McpTool

__all__ = ["MCPTool", "McpTool"]
