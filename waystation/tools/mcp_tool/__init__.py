"""Where ADK has `google.adk.tools.mcp_tool`. Needs the extra `mcp`."""

from tools.mcp import (
    MCPTool,
    McpTool,
    MCPToolset,
    McpToolset,
    SseConnectionParams,
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)

__all__ = [
    "MCPTool",
    "MCPToolset",
    "McpTool",
    "McpToolset",
    "SseConnectionParams",
    "StdioConnectionParams",
    "StreamableHTTPConnectionParams",
]
