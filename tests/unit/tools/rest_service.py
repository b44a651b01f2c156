"""A real HTTP service for tests, and tools that call it. It echoes each request, or returns the answer for its path."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from waystation.tools.openapi_tool import OpenAPIToolset, RestApiTool
from waystation.tools.tool_context import ToolContext

ERROR = (
    "Tool {} execution failed. Analyze this execution error and your inputs. Retry with adjustments if applicable. But "
    "make sure don't retry more than 3 times. Execution Error: {}"
)
"""The literal value in ADK's wire format."""


class Service(ThreadingHTTPServer):
    """A service that records its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.media_type, self.reply = "application/json", b"{}"

    @property
    def host(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://{self.host}"


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        service = self.server
        assert isinstance(service, Service)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = {
            "method": self.command,
            "target": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body.decode("utf-8", "replace"),
        }
        service.requests.append(request)
        kind = self.path.strip("/").split("/")[0].split("?")[0]
        status, headers, text = 200, {"Content-Type": "application/json"}, json.dumps(request)
        match kind:
            case "empty":
                status, text = 204, ""
            case "missing":
                status, text = 404, "no such pet"
            case "moved":
                status, headers, text = 302, {"Location": f"{service.url}/secret"}, ""
            case "large":
                text = "x" * 3_000_000
        data = text.encode("latin-1")
        if kind == "reply":
            headers, data = {"Content-Type": service.media_type}, service.reply
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_TRACE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the access log."""


@contextmanager
def serving() -> Iterator[Service]:
    """Run a service in a thread."""
    service = Service()
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


def spec(url: str, path: str = "/echo", method: str = "get", **operation: Any) -> dict[str, Any]:
    """Return a specification of one operation, `ask`."""
    item = {method: {"operationId": "ask", "responses": {"200": {"description": "ok"}}, **operation}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "T", "version": "1"},
        "servers": [{"url": url}],
        "paths": {path: item},
    }


def tool(document: dict[str, Any], **settings: Any) -> RestApiTool:
    """Return a tool of the specification that may call this machine."""
    settings.setdefault("allow_private_network_access", True)
    operation = OpenAPIToolset(spec_dict=document, **settings).get_tool("ask")
    assert operation is not None
    return operation


def parameter(name: str, location: str = "query", **fields: Any) -> dict[str, Any]:
    """Return a parameter that is a string."""
    return {"name": name, "in": location, "schema": {"type": "string"}, **fields}


def body(schema: Any, media_type: str = "application/json", **fields: Any) -> dict[str, Any]:
    """Return a request body."""
    return {"content": {media_type: {"schema": schema, **fields}}}


async def call(operation: RestApiTool, /, **args: Any) -> Any:
    """Call a tool."""
    return await operation.run_async(args=args, tool_context=ToolContext(idempotency_key="i-1/fc-1"))
