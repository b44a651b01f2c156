"""The agent that the TCK of A2A expects, whose replies depend on the ID of the message, and a server for it."""

import asyncio
import contextlib
import json
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from google.genai import types
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.server.web.sites import TOKEN
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.models.function_model import FunctionModel, Reply, latest_turn
from waystation.testing import calls, says
from waystation.tools import ToolContext
from waystation.tools.long_running_tool import LongRunningFunctionTool

STREAM_S = 5.0
DATA = {"key": "value", "count": 42}


async def save_file(place: str, tool_context: ToolContext) -> str:
    """Save a file, or the link to one."""
    part = types.Part(inline_data=types.Blob(data=b"File content.", mime_type="text/plain"))
    if place:
        part = types.Part(file_data=types.FileData(file_uri=place, mime_type="text/plain"))
    await tool_context.save_artifact("output.txt", part)
    return "saved"


def ask(question: str) -> None:
    """Ask the user."""


async def reply(request: LlmRequest) -> Reply:
    """Return what a scenario of the TCK asks for."""
    text, results = latest_turn(request)
    if results and results[-1][0] == "ask":
        text, results = str(results[-1][1].get("text")), []
    if results:
        return says("Saved.")
    if text.startswith("tck-input-required"):
        return calls(("ask", {"question": "What else?"}))
    if text.startswith("tck-artifact-file-url"):
        return calls(("save_file", {"place": "https://example.com/output.txt"}))
    if text.startswith(("tck-artifact-file", "tck-stream-artifact-file")):
        return calls(("save_file", {"place": ""}))
    if text.startswith("tck-artifact-data"):
        return calls(("transfer_to_agent", {"agent_name": "data_agent"}))
    if text.startswith("tck-reject-task"):
        return LlmResponse(error_code="PROHIBITED_CONTENT", error_message="rejected")
    if text.startswith("test-resubscribe-message-id"):
        await asyncio.sleep(STREAM_S)
    return says("Generated text content")


def make_agent() -> Agent:
    """Return the agent."""
    model = FunctionModel(lambda _: says(json.dumps(DATA)))
    data = Agent(name="data_agent", model=model, output_schema={"type": "object"})
    tools = [save_file, LongRunningFunctionTool(ask)]
    return Agent(name="tck", model=FunctionModel(reply), tools=tools, sub_agents=[data])


class Front:
    """Gives requests of the TCK what it cannot send: a token, the path of the card, and the ID in the text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        with contextlib.suppress(ValueError):
            body = name_message(body)
        path = scope["path"]
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers += [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-length", str(len(body)).encode())]
        path = f"/a2a/tck{path}" if path.startswith("/.well-known") else path
        parts: Iterator[Any] = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_rest() -> Any:
            return next(parts, None) or await receive()

        await self._app({**scope, "path": path, "raw_path": path.encode(), "headers": headers}, receive_rest, send)


def name_message(body: bytes) -> bytes:
    """Put the ID of a message before its text, and make it unique: the kit starts several tasks with one ID."""
    content = json.loads(body)
    message = (content.get("params") or content).get("message")
    if message and message.get("messageId", "").startswith(("tck-", "test-")):
        for part in message["parts"]:
            if "text" in part:
                part["text"] = f"{message['messageId']} {part['text']}"
        if not {"contextId", "taskId"} & set(message):
            message["messageId"] += f"-{uuid.uuid4().hex}"
    return json.dumps(content).encode()


@contextlib.asynccontextmanager
async def front(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application to the TCK, and yield the address."""
    config = uvicorn.Config(Front(app), lifespan="off", log_config=None, ws="none")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
