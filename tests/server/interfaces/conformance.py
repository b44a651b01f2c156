"""A server for the conformance suite: agents with the names that it calls, on the handlers of the interface."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from mcp.server.mcpserver.server import require_client_extension
from mcp_types import CallToolRequestParams, ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.server.web.sites import TOKEN
from waystation.agents import Agent
from waystation.client import AgentClient
from waystation.core.payload import JsonObject
from waystation.interfaces.mcp_server import ProtocolServer
from waystation.interfaces.mcp_server.agent_tools import MessageArguments
from waystation.interfaces.mcp_server.protocol_server import TASKS
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, responses, user_text
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext
from waystation.web.access import Access
from waystation.web.limits import Limits
from waystation.web.logins import Login
from waystation.web.route_table import RouteRow
from waystation.web.server import configure, create_app
from waystation.web.web_services import WebServices
from waystation.web.web_settings import WebSettings

NAME_FORM = ElicitRequest(
    params=ElicitRequestFormParams(
        message="What is your name?",
        requested_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    )
)


def read_arguments(request: LlmRequest) -> dict[str, Any]:
    """Return the arguments of the tool, which the server sends as the message."""
    arguments: dict[str, Any] = json.loads(user_text(request))
    return arguments


async def compute(seconds: float) -> dict[str, float]:
    """Compute for some seconds."""
    await asyncio.sleep(seconds)
    return {"seconds": seconds}


def remove(name: str) -> dict[str, str]:
    """Remove something."""
    return {"removed": name}


def make_agents() -> list[Agent]:
    """Return the agents. Each reads its arguments from the message, so each may serve many invocations."""

    def greet(request: LlmRequest) -> str:
        return f"Hello, {read_arguments(request)['name']}!"

    def compute_first(request: LlmRequest) -> LlmResponse | str:
        arguments = read_arguments(request)
        return "Computed." if responses(request) else calls(("compute", {"seconds": arguments["seconds"]}))

    def remove_first(*names: str) -> FunctionModel:
        wanted = calls(*(("remove", {"name": name}) for name in names))
        return FunctionModel(lambda request: "Removed." if responses(request) else wanted)

    async def terminate(tool_context: ToolContext) -> None:
        """End the workflow of this invocation, as an operator does."""
        await CLIENT[0].temporal.get_workflow_handle(tool_context.invocation_id).terminate("The server is repaired.")

    failure = LlmResponse(error_code="FAILED", error_message="The job has failed.")
    confirmed = FunctionTool(remove, require_confirmation=True)
    return [
        Agent(name="greet", model=FunctionModel(greet)),
        Agent(name="test_tool_with_task", model=FunctionModel(greet)),
        Agent(name="slow_compute", model=FunctionModel(compute_first), tools=[compute]),
        Agent(name="failing_job", model=FunctionModel(lambda _: failure)),
        Agent(name="protocol_error_job", model=FunctionModel(lambda _: calls(("terminate", {}))), tools=[terminate]),
        Agent(name="confirm_delete", model=remove_first("a"), tools=[confirmed]),
        Agent(name="multi_input", model=remove_first("a", "b"), tools=[confirmed]),
    ]


CLIENT: list[AgentClient] = []
"""The client of the tool that ends its workflow."""


class ConformanceServer(ProtocolServer):
    """The server of the interface with the rules of the suite for some of its tools."""

    async def start_agent(self, login: Login, agent: str, arguments: JsonObject) -> str:
        """Send the arguments to the agent as JSON."""
        return await self.tools.start(login, agent, MessageArguments(message=json.dumps(arguments)))

    def makes_task(self, ctx: Any, agent: str) -> bool:
        """`greet` is never a task, and `failing_job` always."""
        if agent == "failing_job":
            require_client_extension(ctx, TASKS)
        return agent != "greet" and super().makes_task(ctx, agent)

    async def call_agent(self, ctx: Any, login: Login, params: CallToolRequestParams) -> Any:
        """`test_tool_with_task` asks for a name before it starts."""
        if params.name == "test_tool_with_task":
            if not params.input_responses:
                return InputRequiredResult(input_requests={"name": NAME_FORM})
            [response] = params.input_responses.values()
            params = params.model_copy(update={"arguments": response.content, "input_responses": None})  # type: ignore[union-attr]  # a form
        return await super().call_agent(ctx, login, params)


class ConformanceInterface:
    """The interface of the server for the suite."""

    def make_rows(self, services: WebServices, /) -> Sequence[RouteRow]:
        """Return the route."""
        return [RouteRow("POST", "/mcp", ConformanceServer(services).serve, "login", accepts=("application/json",))]  # type: ignore[arg-type]  # an ASGI application is a response


def add_token(app: ASGIApp) -> ASGIApp:
    """Return an application that adds the token to requests, which the suite cannot send."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        token = (b"authorization", f"Bearer {TOKEN}".encode())
        await app({**scope, "headers": [*scope["headers"], token]}, receive, send)

    return serve


@contextlib.asynccontextmanager
async def conformance_site(client: AgentClient) -> AsyncIterator[str]:
    """Serve the agents to the suite, and return the address."""
    CLIENT[:] = [client]
    limits = Limits(posts=1_000_000, posts_of_address=1_000_000)
    settings = WebSettings(interfaces={"mcp": ConformanceInterface()}, limits=limits)
    app = create_app(client, settings, Access(announce=lambda _: None, token=TOKEN, person="dana", limits=limits))
    config = configure(app, limits=limits)
    config.app = add_token(app)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await serving
