"""The company's handbook as an MCP server, which a worker starts and stops."""

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

RULES = {"chairs": "A chair costs at most 300 euros.", "travel": "Travel by train where it takes less than six hours."}

server = MCPServer("handbook", log_level="WARNING")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def search_handbook(topic: str) -> dict[str, str]:
    """Return the rule on a topic, such as `travel`."""
    return {"rule": RULES.get(topic, "There is no rule.")}


if __name__ == "__main__":
    server.run("stdio")
