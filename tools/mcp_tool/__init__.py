"""Tools from Model Context Protocol (MCP) servers. Requires the optional extra `mcp`."""

try:
    from mcp import StdioServerParameters
except ModuleNotFoundError as error:
    raise ImportError("McpToolset needs the package `mcp`; install `waystation[mcp]`.") from error

from waystation.tools.mcp_tool.mcp_session_manager import (
    McpConnectionError,
    SseConnectionParams,
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from waystation.tools.mcp_tool.mcp_tool import McpCallFailed, MCPTool, McpTool
from waystation.tools.mcp_tool.mcp_toolset import MCPToolset, McpToolset
from waystation.tools.outcome import OutcomeUnknown

__all__ = [
    "MCPTool",
    "MCPToolset",
    "McpCallFailed",
    "McpConnectionError",
    "McpTool",
    "McpToolset",
    "OutcomeUnknown",
    "SseConnectionParams",
    "StdioConnectionParams",
    "StdioServerParameters",
    "StreamableHTTPConnectionParams",
]
