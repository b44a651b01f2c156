"""Start MCP servers over both transports, and call their tools as activities do."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waystation.agents import LlmAgent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.agents.toolbox import list_tools
from waystation.tools.mcp_tool import (
    McpToolset,
    StdioConnectionParams,
    StdioServerParameters,
    StreamableHTTPConnectionParams,
)
from waystation.tools.tool_context import ToolContext

SERVER = str(Path(__file__).parent / "mcp_server.py")
LIMIT_S = 30.0


def stdio(**settings: Any) -> McpToolset:
    """Return the tools of a server over stdio."""
    program = StdioServerParameters(command=sys.executable, args=[SERVER, "stdio"])
    return McpToolset(connection_params=StdioConnectionParams(server_params=program, timeout=LIMIT_S), **settings)


@contextmanager
def http_server(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server over HTTP; yield its port and its process."""
    process = subprocess.Popen([sys.executable, SERVER, "http", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def over_http(port: str, **settings: Any) -> McpToolset:
    """Return the tools of the server at a port."""
    parameters = StreamableHTTPConnectionParams(url=f"http://127.0.0.1:{port}/mcp", timeout=LIMIT_S)
    return McpToolset(connection_params=parameters, **settings)


def at(invocation_id: str = "i-1", **state: Any) -> ReadonlyContext:
    """Return the context in which tools are listed."""
    return ReadonlyContext(invocation_id=invocation_id, state=state)


async def call(toolset: McpToolset, name: str, /, *, context: ToolContext | None = None, **args: Any) -> Any:
    """Call a tool as the activity does: in another task, by its name."""

    async def run() -> Any:
        tools = await list_tools(LlmAgent(name="a", tools=[toolset]), at)
        return await tools[name].run_async(args=args, tool_context=context or ToolContext())

    return await asyncio.create_task(run())


def text(result: Any) -> str:
    """Return the text of a tool's result."""
    return str(result["content"][0]["text"])
