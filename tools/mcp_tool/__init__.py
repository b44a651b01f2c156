"""Tools of servers that speak the Model Context Protocol. Needs the extra `mcp`."""

try:
    from mcp import StdioServerParameters
except ModuleNotFoundError as error:
    raise ImportError("McpToolset needs the package `mcp`; install `waystation[mcp]`.") from error

from waystation.tools.mcp_tool.mcp_session_manager import McpConnectionError, OutcomeUnknown
from waystation.tools.mcp_tool.mcp_tool import McpCallFailed, MCPTool, McpTool
from waystation.tools.mcp_tool.mcp_toolset import MCPToolset, McpToolset
from waystation.tools.mcp_tool.parameters import (
    SseConnectionParams,
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)

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
