"""Limits of the MCP server on forms, waits and slow clients."""

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.client import Client
from starlette.requests import Request
from starlette.types import Message

from waystation.core.payload import JsonObject
from waystation.interfaces.mcp_server import ProtocolServer, elicitations, protocol_server
from waystation.web.logins import Login


def make_schema(schema: JsonObject | None) -> JsonObject | None:
    """Return the schema of the form for a question."""
    pending = SimpleNamespace(kind="long_running", response_schema=schema, policy=None)
    call: Any = SimpleNamespace(actions=("respond",), view=SimpleNamespace(pending=pending))
    return elicitations.make_schema(call)


def test_a_form_has_the_fields_of_a_flat_response_schema() -> None:
    """It has no other keywords."""
    size = {"type": "string", "enum": ["S", "L"], "pattern": "x"}
    form = make_schema({"type": "object", "properties": {"size": size}, "required": ["size"]})
    assert form == {
        "type": "object",
        "properties": {"size": {"type": "string", "enum": ["S", "L"]}},
        "required": ["size"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"size": {"type": "object"}}},
        {"properties": {"size": {"type": ["string", "null"]}}},
        {"properties": {"size": {"type": "integer", "enum": [1, 2]}}},
        {"properties": {"size": {"type": "string", "enum": ["1", 2]}}},
        {"properties": {"size": True}},
        {"properties": {"size": {"type": "string"}}, "required": ["color"]},
    ],
)
def test_a_schema_that_a_form_cannot_have_is_answered_on_the_page(schema: JsonObject) -> None:
    """A client would refuse the form, or the response would never be valid."""
    assert make_schema(schema) is None


@pytest.mark.parametrize(
    ("age_s", "is_waiting", "poll_ms"),
    [(0, False, 2_000), (0, True, 10_000), (300, False, 30_000), (86_400, True, 60_000)],
)
def test_old_tasks_are_read_less_often(age_s: float, is_waiting: bool, poll_ms: int) -> None:
    """A hundred tasks that wait for days stay within the requests of one person."""
    changed = datetime.now(UTC) - timedelta(seconds=age_s)
    view: Any = SimpleNamespace(times=(changed, changed), calls=[1] * is_waiting)
    assert protocol_server.find_poll_ms(view) == pytest.approx(poll_ms, rel=0.01)


async def test_a_tool_that_hangs_ends_on_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over standard input and output, only the person of the client has more time."""
    monkeypatch.setattr(protocol_server, "HOLD_S", 0.05)
    services: Any = None
    server = ProtocolServer(services, local=Login("dana", browser=False, vouched=False))

    async def hang(*_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(server.tools, "start", hang)
    async with Client(server.server, mode="legacy") as client:
        result = await client.call_tool("agent_start", {"agent": "payer", "message": "Pay."})
    assert (result.is_error, "took longer" in str(result.content)) == (True, True)


async def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its response counts as an open stream until then."""
    monkeypatch.setattr(protocol_server, "STALLED_S", 0.05)
    closed = list[bool]()

    def open_stream(_: Login) -> ExitStack:
        stack = ExitStack()
        stack.callback(closed.append, True)
        return stack

    services: Any = SimpleNamespace(invocations=SimpleNamespace(open_stream=open_stream))
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    accept = (b"accept", b"application/json, text/event-stream")
    headers = [accept, (b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {
        "type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers, "state": {},
    }  # fmt: skip

    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(_: Message) -> None:
        await asyncio.Event().wait()

    request = Request(scope, receive)
    request.state.login = Login("dana", browser=False, vouched=False)
    respond = await ProtocolServer(services).serve(request)
    async with asyncio.timeout(10):
        await respond(scope, receive, send)
    assert closed == [True]
