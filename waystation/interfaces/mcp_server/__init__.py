"""The interface for MCP clients: agents as tools, over HTTP and over standard input and output.

Nothing is kept in memory between requests. A task is an invocation, and its ID is that of the invocation.
"""

from waystation.interfaces.mcp_server.protocol_server import ProtocolServer, make_rows, serve_stdio

__all__ = ["ProtocolServer", "make_rows", "serve_stdio"]
