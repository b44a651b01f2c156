"""Tools of servers that speak the Model Context Protocol. Needs the extra `mcp`."""

try:
    from mcp import StdioServerParameters
except ModuleNotFoundError as error:
    raise ImportError("McpToolset needs the package `mcp`; install `waystation[mcp]`.") from error

from tools.mcp.parameters import SseConnectionParams, StdioConnectionParams, StreamableHTTPConnectionParams
from tools.mcp.session import McpConnectionError, OutcomeUnknown
from tools.mcp.tool import McpCallFailed, McpTool
from tools.mcp.toolset import MCPToolset, McpToolset

MCPTool = McpTool

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
