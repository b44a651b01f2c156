"""Clients of the MCP interface, as the package `mcp` has them."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx2 as httpx
from mcp.client import Client, ClientSession
from mcp.client.context import ClientRequestContext
from mcp.client.extension import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    Request,
    RequestParams,
    Result,
    TextContent,
)
from pydantic import ConfigDict

from tests.server.web.sites import TOKEN

TASKS = "io.modelcontextprotocol/tasks"


class AnyResult(Result):
    """A result with the fields of an extension."""

    model_config = ConfigDict(extra="allow")


class Person:
    """The person of a client, who answers each form with the next response."""

    def __init__(self, *responses: ElicitResult) -> None:
        self.responses, self.asked = list(responses), list[ElicitRequestParams]()

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params)
        return self.responses.pop(0)


def accepts(**content: Any) -> ElicitResult:
    """Return the response to a form that was filled in."""
    return ElicitResult(action="accept", content=content)


@contextlib.asynccontextmanager
async def connected(
    url: str, *, token: str = TOKEN, person: Person | None = None, tasks: bool = False, mode: str = "auto"
) -> AsyncIterator[Client]:
    """Connect a client."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=70) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        extensions = [advertise(TASKS)] if tasks else []
        async with Client(transport, elicitation_callback=person, extensions=extensions, mode=mode) as client:
            yield client


class TaskRequestParams(RequestParams):
    """The parameters of requests for tasks."""

    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[TaskRequestParams, str]):
    """A request for a task."""


async def start_task(client: Client, agent: str, **arguments: Any) -> dict[str, Any]:
    """Call an agent and return the task."""
    params = CallToolRequestParams(name=agent, arguments=arguments)
    return await send(client.session, CallToolRequest(params=params))


async def ask(
    client: Client, method: Literal["tasks/get", "tasks/update", "tasks/cancel"], task_id: str, **params: Any
) -> dict[str, Any]:
    """Send a request for a task, and return the result."""
    request = TaskRequest(method=method, params=TaskRequestParams(task_id=task_id, **params))
    return await send(client.session, request)


async def settle(client: Client, task_id: str) -> dict[str, Any]:
    """Wait until a task no longer works by itself, and read it."""
    await client.call_tool("agent_get", {"invocation_id": task_id, "wait_s": 50})
    return await ask(client, "tasks/get", task_id)


def text_of(result: CallToolResult) -> str:
    """Return the text of the result of a tool."""
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def send(session: ClientSession, request: Any) -> dict[str, Any]:
    result = await session.send_request(request, AnyResult)
    return result.model_dump(mode="json", by_alias=True)
