"""A remote A2A agent for tests: the server parts of `a2a-sdk` behind real HTTP on a loopback port, in a thread.

with A2aAgent() as remote:
    ...
    remote.messages            # what it received, oldest first

The first word of a message says what the agent does: `say`, `work`, `ask`, `authorize`, `fail`, `reject` or `send`.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

import uvicorn
from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Message, Part, SendMessageRequest, Task
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from waystation.embedded import HOST

Reply = Callable[[bytes], Response]
"""Replaces the body of a response."""


class _Executor(AgentExecutor):
    def __init__(self, remote: "A2aAgent") -> None:
        self._remote = remote

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        what, _, rest = context.get_user_input().partition(" ")
        if what == "say":
            await event_queue.enqueue_event(new_text_message(rest))
            return
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            status = {"state": "TASK_STATE_SUBMITTED"}
            about = {"id": context.task_id, "contextId": context.context_id, "status": status}
            await event_queue.enqueue_event(json_format.ParseDict(about, Task()))
            self._remote.tasks.append(context.task_id)
        await updater.start_work()
        text = updater.new_agent_message
        match what:
            case "ask":
                await updater.requires_input(text([Part(text=rest)]))
                return
            case "fail":
                await updater.failed(text([Part(text=rest)]))
                return
            case "reject":
                await updater.reject(text([Part(text=rest)]))
                return
            case "authorize":
                await updater.requires_auth(text([Part(text="Log in first.")]))
                await self._pass_gate()
            case "work":
                await self._pass_gate()
            case "send":
                await updater.add_artifact(self._remote.parts)
        if what != "send":
            await updater.add_artifact([Part(text=f"Done: {context.get_user_input()}")])
        await updater.complete()

    async def _pass_gate(self) -> None:
        while not self._remote.gate.is_set():
            await asyncio.sleep(0.01)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        self._remote.canceled.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class _Handler(DefaultRequestHandler):
    """Recognizes messages by their IDs, as agents with effects should. The SDK leaves that to its users."""

    remote: "A2aAgent"

    async def on_message_send(self, params: SendMessageRequest, context: Any) -> Any:
        message = Message()
        message.CopyFrom(params.message)  # the SDK adds the IDs that it chooses
        self.remote.messages.append(message)
        known = self.remote.known.get(params.message.message_id)
        if known is not None:
            return known
        result = await super().on_message_send(params, context)
        self.remote.known[params.message.message_id] = result
        return result


class A2aAgent:
    """A remote agent. Change the fields at any time."""

    def __init__(self, *, binding: str = "JSONRPC", version: str = "1.0") -> None:
        self.binding, self.version = binding, version
        self._socket = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        self.card_url = ""
        """Where the card sends requests, if not to this agent."""
        self.messages: list[Message] = []
        self.known: dict[str, Any] = {}
        self.tasks: list[str] = []
        self.canceled: list[str] = []
        self.parts: list[Part] = []
        """The content of the artifact of a task that a message with `send` starts."""
        self.headers: list[dict[str, str]] = []
        """Those of each request."""
        self.methods: list[str] = []
        self.replies: dict[str, Reply] = {}
        """By method, what replaces the reply of the agent, which has handled the request."""
        self.gate = threading.Event()
        """Set it to let tasks end."""

    def card(self) -> AgentCard:
        """Return the card."""
        url = self.card_url or f"{self.url}/a2a"
        interface = AgentInterface(url=url, protocol_binding=self.binding, protocol_version=self.version)
        return AgentCard(
            name="remote",
            description="Works elsewhere.",
            version="1",
            supported_interfaces=[interface],
            capabilities=AgentCapabilities(streaming=True),
            skills=[AgentSkill(id="work", name="Work", description="Works.", tags=["work"])],
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
        )

    def __enter__(self) -> Self:
        handler = _Handler(_Executor(self), InMemoryTaskStore(), self.card())
        handler.remote = self
        routes = [
            *create_agent_card_routes(self.card()),
            *create_jsonrpc_routes(handler, "/a2a", enable_v0_3_compat=True),
            *create_rest_routes(handler, path_prefix="/a2a"),
        ]
        app = Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=self._observe)])
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        while not self._server.started:
            threading.Event().wait(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.should_exit = True
        self._thread.join(20)

    async def _observe(self, request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Response:
        body = await request.body()
        method = json.loads(body).get("method") if request.url.path == "/a2a" else request.url.path
        self.methods.append(method)
        self.headers.append(dict(request.headers))
        response = await call_next(request)
        content = b"".join([chunk async for chunk in response.body_iterator])
        if replace := self.replies.get(method):
            return replace(content)
        headers = {name: value for name, value in response.headers.items() if name != "content-length"}
        return Response(content, response.status_code, headers)
