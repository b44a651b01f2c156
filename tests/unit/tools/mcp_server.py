"""A real MCP server for tests, in its own process: `python mcp_server.py stdio` or `… http [port] [form]`.

Over HTTP it prints its port once it listens. The form `legacy` supports only the protocol with sessions, the form `sse`
uses the transport before streamable HTTP, and the form `json` answers without streams.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("test", log_level="CRITICAL")


class Sum(BaseModel):
    """The result of `add`."""

    total: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@server.tool(structured_output=False)
def process() -> str:
    """Return the ID of the server's process."""
    return str(os.getpid())


@server.tool(structured_output=False)
def fail(reason: str) -> str:
    """Fail with an error of the tool."""
    raise ToolError(reason)


@server.tool(structured_output=False)
def refuse() -> str:
    """Refuse the request itself."""
    raise MCPError(code=-32000, message="Come back tomorrow")


@server.tool(structured_output=False)
async def headers(name: str, ctx: Context[Any, Any]) -> str:
    """Return a header of the request."""
    return str((ctx.headers or {}).get(name, "none"))


@server.tool(structured_output=False)
async def steps(ctx: Context[Any, Any]) -> str:
    """Report progress twice."""
    await ctx.report_progress(1, 2, "half")
    await ctx.report_progress(2, 2, "whole")
    return "done"


@server.tool(structured_output=False)
async def hang(ctx: Context[Any, Any]) -> str:
    """Report progress, and never return."""
    await ctx.report_progress(1, 2)
    await anyio.sleep_forever()
    return ""


def _note_and_die(journal: str) -> str:
    """Have an effect, and end the process before the first answer."""
    file = Path(journal)
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    if file.read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


server.add_tool(_note_and_die, name="pay", structured_output=False)
server.add_tool(
    _note_and_die, name="set_limit", annotations=ToolAnnotations(idempotent_hint=True), structured_output=False
)


@server.tool(structured_output=False)
def transfer_to_agent(agent_name: str) -> str:
    """Use a name that is reserved for the framework."""
    return agent_name


@server.tool(structured_output=False)
async def grow(ctx: Context[Any, Any]) -> str:
    """Add a tool."""

    def grown() -> str:
        """Return a constant."""
        return "grown"

    server.add_tool(grown, structured_output=False)
    await ctx.session.send_tool_list_changed()
    return "ok"


@server.tool(structured_output=False)
def parts(count: int = 1, length: int = 1) -> list[str]:
    """Return several texts of a given length."""
    return ["x" * length] * count


@server.resource("memo://today", name="today", mime_type="text/plain")
def today() -> str:
    """Return the tasks of today."""
    return "buy milk"


def _legacy(app: Any) -> Any:
    """Return an app that refuses the newer protocol, like a server that does not know it."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-method", b"server/discover") in scope.get("headers", ()):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return serve


def _serve_http(port: int, form: str) -> None:
    listening = socket.create_server(("127.0.0.1", port))
    print(listening.getsockname()[1], flush=True)  # noqa: T201  # it is what the test waits for
    app: Any = server.sse_app() if form == "sse" else server.streamable_http_app(json_response=form == "json")
    uvicorn.Server(uvicorn.Config(_legacy(app) if form == "legacy" else app, log_level="error")).run(
        sockets=[listening]
    )


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run()
    else:
        _serve_http(int(sys.argv[2]) if len(sys.argv) > 2 else 0, sys.argv[-1])
