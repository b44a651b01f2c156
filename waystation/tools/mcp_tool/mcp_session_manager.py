"""Where ADK has `google.adk.tools.mcp_tool.mcp_session_manager`."""

from tools.mcp import (
    SseConnectionParams,
    StdioConnectionParams,
    StdioServerParameters,
    StreamableHTTPConnectionParams,
)

__all__ = ["SseConnectionParams", "StdioConnectionParams", "StdioServerParameters", "StreamableHTTPConnectionParams"]
