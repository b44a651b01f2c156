"""An MCP server over stdio that lies in the way that its first argument names.

An argument `@FILE` names a file with the lie. The server uses no MCP library.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

LIE = sys.argv[1] if len(sys.argv) > 1 else ""
if LIE.startswith("@"):
    LIE = Path(LIE[1:]).read_text()
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


def send(message: dict[str, Any]) -> None:
    """Send one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listing(page: int) -> dict[str, Any]:
    """Return a page of tools."""
    match LIE:
        case "endless":
            return {"tools": [{**ADD, "name": f"add_{page}"}], "nextCursor": str(page + 1)}
        case "many":
            return {"tools": [{**ADD, "name": f"add_{number}"} for number in range(3_000)]}
        case "changed":
            return {"tools": [{**ADD, "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}}}}]}
        case _:
            return {"tools": [ADD]}


def answer(request: dict[str, Any]) -> None:
    """Answer one request."""
    params = request.get("params") or {}
    match request["method"]:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            about = {"name": "liar", "version": "1"}
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": capabilities,
                "serverInfo": about,
            }
        case "tools/list":
            result = listing(int(params.get("cursor") or 0))
        case "tools/call":
            result = {"content": [{"type": "text"} if LIE == "invalid" else {"type": "text", "text": "1"}]}
            if LIE == "odd":
                result |= {"content": [{"type": "text", "text": "cut \ud83d"}], "structuredContent": {"n": math.nan}}
        case _:
            send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
            return
    if LIE == "flood":
        for _ in range(2_000):
            sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n')
    if LIE == "hanging" and request["method"] != "initialize":
        return
    send({"id": request["id"], "result": result})


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        answer(message)
