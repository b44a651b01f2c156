"""MCP servers that lie: endless and huge listings, floods of notifications, and silence."""

import sys
from collections.abc import AsyncGenerator, MutableMapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit.tools.mcp_calls import at, call
from waystation.core.payload import decode
from waystation.tools import ToolContext
from waystation.tools.mcp_tool import McpToolset, StdioConnectionParams, StdioServerParameters
from waystation.tools.mcp_tool.mcp_session_manager import McpConnectionError, _record_delivery
from waystation.tools.outcome import FailedAfterEffect, create_outcome

SERVER = str(Path(__file__).parent / "lying_mcp_server.py")


def liar(lie: str, *, limit_s: float = 20.0) -> McpToolset:
    """Return the tools of a server that tells this lie."""
    program = StdioServerParameters(command=sys.executable, args=[SERVER, lie])
    return McpToolset(connection_params=StdioConnectionParams(server_params=program, timeout=limit_s))


async def test_an_honest_server_works() -> None:
    """This control shows that the server without a library works."""
    toolset = liar("")
    try:
        assert [tool.name for tool in await toolset.get_tools(at())] == ["add"]
        assert (await call(toolset, "add", a=1))["content"] == [{"type": "text", "text": "1"}]
    finally:
        await toolset.close()


async def test_an_endless_listing_is_cut() -> None:
    """An endless listing is cut, and the tools of its first pages are offered."""
    toolset = liar("endless")
    try:
        tools = await toolset.get_tools(at())
        assert 1 < len(tools) <= 1_000
    finally:
        await toolset.close()


async def test_a_listing_of_too_many_tools_is_cut(logs: list[MutableMapping[str, Any]]) -> None:
    """A long listing is cut, because a prompt cannot contain thousands of declarations; the log says so."""
    toolset = liar("many")
    try:
        assert len(await toolset.get_tools(at())) == 1_000
        assert [entry["event"] for entry in logs] == ["mcp_tools.cut"]
    finally:
        await toolset.close()


async def test_a_flood_of_notifications_does_not_block_calls() -> None:
    """Each call and listing returns, however often the server says that its list has changed."""
    toolset = liar("flood")
    try:
        assert [tool.name for tool in await toolset.get_tools(at())] == ["add"]
        assert (await call(toolset, "add", a=1))["content"] == [{"type": "text", "text": "1"}]
    finally:
        await toolset.close()


async def test_a_call_with_an_invalid_result_has_taken_effect() -> None:
    """The server ran the tool before `mcp` rejected the result, so the model must not call it again for that reason."""
    toolset = liar("invalid")
    with pytest.raises(FailedAfterEffect):
        await call(toolset, "add", a=1)
    await toolset.close()


async def test_odd_values_are_replaced_and_named() -> None:
    """Half an emoji, for example, is replaced, because `mcp` cannot parse it, so the call would never return."""
    toolset = liar("odd")
    result = create_outcome(await call(toolset, "add", a=1), context=ToolContext()).response
    await toolset.close()
    assert result == {
        "content": [{"type": "text", "text": "cut \ufffd"}],
        "structuredContent": {"n": "NaN"},
        "isError": False,
        "meta": {
            "replaced_values": [
                "result.content[0].text was text with a lone surrogate",
                "result.structuredContent.n was the number nan",
            ]
        },
    }


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_half_an_emoji_is_replaced_over_http(kind: str) -> None:
    """Half an emoji is replaced even if it arrives in several chunks; other messages are unchanged."""
    odd, fine = '{"result": {"text": "cut \\ud83d"}}', '{"result": {"text": "\\ud83d\\ude00"}}'
    text = odd if kind == "application/json" else f"event: message\r\ndata: {odd}\r\n\r\ndata: {fine}\n\n"

    async def content() -> AsyncGenerator[bytes, None]:
        for character in text:
            yield character.encode()

    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers={"content-type": kind}, content=content()))
    client = _record_delivery(httpx2.AsyncClient(transport=transport))
    async with client, client.stream("GET", "http://localhost/") as response:
        if kind == "application/json":
            messages = [await response.aread()]
        else:
            messages = [event.data.encode() async for event in httpx2.EventSource(response)]
    notes = {"replaced_values": ["result.text was text with a lone surrogate"]}
    expected = [{"text": "cut \ufffd", "_meta": notes}, {"text": "\U0001f600"}]
    assert [decode(message)["result"] for message in messages] == expected[: len(messages)]


async def test_a_server_that_hangs_times_out() -> None:
    """A hanging server times out after the timeout of the connection."""
    toolset = liar("hanging", limit_s=0.5)
    try:
        with pytest.raises(McpConnectionError, match=r"0\.5 s"):
            await toolset.get_tools(at())
    finally:
        await toolset.close()
