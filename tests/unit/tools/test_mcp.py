"""McpToolset with real servers, over stdio and over streamable HTTP. Source: adk-semantics 10."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.tools.mcp_calls import at, call, http_server, over_http, stdio, text
from waystation.agents import LlmAgent
from waystation.agents.toolbox import list_tools
from waystation.core.payload import JsonObject
from waystation.tools.base_tool import declare
from waystation.tools.mcp_tool import McpCallFailed, McpToolset, StdioConnectionParams, StdioServerParameters
from waystation.tools.mcp_tool.mcp_session_manager import _FilteringStream
from waystation.tools.mcp_tool.mcp_tool import plain_result
from waystation.tools.outcome import FailedAfterEffect, create_outcome
from waystation.tools.tool_context import ToolContext

Make = Callable[..., McpToolset]


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with http_server() as (port, _):
        yield port


@pytest.fixture(scope="module", params=["stdio", "http"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Create toolsets over each transport, with one shared toolset for default settings, and close them at the end."""
    made: list[McpToolset] = []

    def one(**settings: Any) -> McpToolset:
        if made and not settings:
            return made[0]
        if request.param == "stdio":
            toolset = stdio(**settings)
        else:
            toolset = over_http(request.getfixturevalue("port"), **settings)
        made.insert(len(made) if settings else 0, toolset)
        return toolset

    one()
    yield one
    for toolset in made:
        await toolset.close()


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[McpToolset]:
    """Return the tools of one program."""
    toolset = stdio()
    yield toolset
    await toolset.close()


# Listing


async def test_tools_are_listed_by_name(make: Make) -> None:
    """Tools are sorted by name, because servers promise no order; reserved names are left out."""
    names = list(await list_tools(LlmAgent(name="a", tools=[make()]), at))
    assert names == sorted(names)
    assert "add" in names
    assert "transfer_to_agent" not in names


LISTING_SERVER = """
import json, sys
sound = {"name": "add", "inputSchema": {"type": "object"}}
listing = [{"name": "no_schema"}, sound, {**sound, "name": 3}, {**sound, "name": "wrong", "outputSchema": 3}, "text"]
for line in sys.stdin:
    asked = json.loads(line)
    version = asked.get("params", {}).get("protocolVersion")
    answers = {
        "initialize": {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": listing},
    }
    answer = answers.get(asked["method"])
    outcome = {"result": answer} if answer else {"error": {"code": -32601, "message": "unknown"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **outcome}), flush=True)
"""


async def test_an_invalid_tool_does_not_remove_the_others(logs: list[MutableMapping[str, Any]]) -> None:
    """Only the invalid tools of a listing are left out, and each is logged once."""
    program = StdioServerParameters(command=sys.executable, args=["-c", LISTING_SERVER])
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=program, timeout=30))
    for _ in range(2):
        assert [tool.name for tool in await toolset.get_tools(at())] == ["add"]
        await toolset.close()
        toolset._listings.clear()
    assert [entry["tool"] for entry in logs if entry["event"] == "mcp_tool.left_out"] == ["no_schema", 3, "wrong", None]


async def test_unknown_protocol_version_does_not_end_the_connection() -> None:
    """An unknown version is ignored: any message may have such a field, and an error would end the reader."""
    tools = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}

    async def stream() -> AsyncIterator[SimpleNamespace]:
        for result in ({"protocolVersion": 5}, tools, {"last": True}):
            yield SimpleNamespace(message=SimpleNamespace(result=result))

    read = [item.message.result async for item in _FilteringStream(stream(), set())]
    assert read[1:] == [{"tools": []}, {"last": True}]


async def test_a_tool_is_declared_with_the_schemas_of_its_server(port: str) -> None:
    """The schemas of the server are declared unchanged."""
    toolset = over_http(port, tool_filter=["add"])
    (tool,) = await toolset.get_tools(at())
    await toolset.close()
    declared = declare(tool)
    assert declared is not None
    assert (declared["name"], declared["description"]) == ("add", "Add two numbers.")
    assert declared["parametersJsonSchema"]["properties"]["a"] == {"title": "A", "type": "integer"}
    assert declared["parametersJsonSchema"]["required"] == ["a", "b"]
    assert declared["responseJsonSchema"]["properties"]["total"]["type"] == "integer"


async def test_a_filter_sees_names_without_the_prefix(port: str) -> None:
    """The model sees the names with the prefix."""
    toolset = over_http(
        port, tool_filter=lambda tool, readonly_context: tool.name in ("add", "fail"), tool_name_prefix="math"
    )
    tools = await list_tools(LlmAgent(name="a", tools=[toolset]), at)
    assert list(tools) == ["math_add", "math_fail"]
    answer = await tools["math_add"].run_async(args={"a": 1, "b": 2}, tool_context=ToolContext())
    assert answer["structuredContent"] == {"total": 3}
    await toolset.close()


async def test_an_invocation_uses_one_listing(local: McpToolset) -> None:
    """The tasks of an invocation use one listing, and another invocation lists the tools again."""
    await local.get_tools(at("i-1"))
    (first, second) = [await local._list_tools(at("i-1")) for _ in range(2)]
    assert first is second
    assert await local._list_tools(at("i-2")) is not first


@pytest.mark.slow
async def test_a_listing_may_be_shared_for_a_time() -> None:
    """A listing is shared for the number of seconds in ADK's setting."""
    toolset = stdio(tool_list_cache_ttl_seconds=3600)
    assert await toolset._list_tools(at("i-1")) is await toolset._list_tools(at("i-2"))
    await toolset.close()


async def test_an_added_tool_is_found() -> None:
    """An added tool is found by the next invocation at the latest."""
    toolset = stdio()
    assert text(await call(toolset, "grow")) == "ok"
    grown = next(tool for tool in await toolset.get_tools(at("i-2")) if tool.name == "grown")
    assert text(await grown.run_async(args={}, tool_context=ToolContext())) == "grown"
    await toolset.close()


# Calling


async def test_a_result_is_returned_unchanged(make: Make) -> None:
    """The names of the protocol are kept, as in ADK."""
    result = await call(make(), "add", a=1, b=2)
    assert result["structuredContent"] == {"total": 3}
    assert result["content"][0]["type"] == "text"
    assert result["isError"] is False
    assert "resultType" not in result
    assert create_outcome(result, context=ToolContext()).response == result


async def test_an_error_of_the_tool_is_a_result(make: Make) -> None:
    """An error of the tool is a result, which the model reads like any other."""
    result = await call(make(), "fail", reason="out of paper")
    assert result["isError"] is True
    assert "out of paper" in text(result)


async def test_a_call_that_the_server_refuses_raises(make: Make) -> None:
    """The activity reports the error to the model."""
    with pytest.raises(McpCallFailed, match="MCP tool execution failed: Come back tomorrow"):
        await call(make(), "refuse")


async def test_calls_of_many_tasks_share_a_session(local: McpToolset) -> None:
    """The program is started once; anyio's scopes are entered and left in one task."""
    answers = await asyncio.gather(*(call(local, "process") for _ in range(8)))
    assert len({text(answer) for answer in answers}) == 1


async def test_a_cancelled_call_does_not_end_the_session(make: Make) -> None:
    """Other calls continue in the session after one is cancelled."""
    running = asyncio.Event()
    toolset = make()
    before = text(await call(toolset, "process"))
    context = ToolContext(heartbeat=lambda *_: running.set())
    hanging = asyncio.create_task(call(toolset, "hang", context=context))
    await running.wait()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert text(await call(toolset, "process")) == before


async def test_progress_is_a_heartbeat(make: Make) -> None:
    """Progress is also reported to the author's callback, which may be created for each call."""
    reports: list[Any] = []
    beats: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    def factory(tool_name: str, *, callback_context: Any = None, **_: Any) -> Callable[..., Awaitable[None]]:
        reports.append((tool_name, callback_context.function_call_id))
        return on_progress

    context = ToolContext(function_call_id="fc-1", heartbeat=lambda *details: beats.append(details))
    assert text(await call(make(progress_callback=factory), "steps", context=context)) == "done"
    assert reports == [("steps", "fc-1"), (1, 2, "half"), (2, 2, "whole")]
    assert len(beats) == 2


async def test_resources_are_read_by_name(make: Make) -> None:
    """Resources are listed, and read by name."""
    toolset = make()
    assert await toolset.list_resources(at()) == ["today"]
    assert (await toolset.get_resource_info("today", at()))["mimeType"] == "text/plain"
    assert [content.text for content in await toolset.read_resource("today", at())] == ["buy milk"]
    with pytest.raises(ValueError, match="Resource with name 'tomorrow' not found"):
        await toolset.read_resource("tomorrow", at())


# Confirmation and effect


@pytest.mark.parametrize(
    ("required", "args", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (lambda a: a > 100, {"a": 500, "b": 1}, True),
        (lambda a: a > 100, {"a": 5}, False),
    ],
)
async def test_a_tool_may_need_a_confirmation(local: McpToolset, required: Any, args: Any, expected: bool) -> None:
    """A confirmation is required always, or by a predicate of the arguments."""
    local.require_confirmation = required
    (tool,) = [tool for tool in await local.get_tools(at()) if tool.name == "add"]
    assert await tool.check_require_confirmation(args, ToolContext()) is expected


async def test_the_effect_of_a_tool_comes_from_the_server(local: McpToolset) -> None:
    """A tool without annotations has the strictest effect."""
    effects = {tool.name: tool.effect for tool in await local.get_tools(at())}
    assert (effects["add"], effects["set_limit"], effects["pay"]) == ("read", "repeatable", "once")


async def test_an_author_may_override_the_effect(port: str) -> None:
    """The setting applies to one tool or to all."""
    toolset = over_http(port, effect={"pay": "repeatable"})
    effects = {tool.name: tool.effect for tool in await toolset.get_tools(at())}
    assert (effects["pay"], effects["process"]) == ("repeatable", "once")
    await toolset.close()


async def test_a_result_is_converted_outside_the_event_loop(local: McpToolset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is converted in a thread, because a server can send many megabytes."""
    threads: list[threading.Thread] = []

    def convert(result: Any) -> JsonObject:
        threads.append(threading.current_thread())
        return plain_result(result)

    monkeypatch.setattr("waystation.tools.mcp_tool.mcp_tool.plain_result", convert)
    assert (await call(local, "add", a=1, b=2))["structuredContent"] == {"total": 3}
    assert threads
    assert threading.current_thread() not in threads


async def test_a_response_with_too_many_values_is_not_validated(make: Make) -> None:
    """Validating too many values would block all threads.

    The tool has run, so the error says so, and the session stays usable.
    """
    toolset = make()
    assert len((await call(toolset, "parts", count=3_000))["content"]) == 3_000
    with pytest.raises(FailedAfterEffect, match=r"more than 30,000 values.* ask for less"):
        await call(toolset, "parts", count=10_000)
    assert text(await call(toolset, "parts")) == "x"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["streams", "json"])
async def test_the_size_of_a_response_over_http_is_limited(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A response up to the limit is returned whole, and a larger one is refused before it is parsed."""
    monkeypatch.setattr("waystation.tools.mcp_tool.mcp_session_manager.MAX_RESULT_BYTES", 2_000_000)
    with http_server("0", form) as (port, _):
        toolset = over_http(port)
        assert len(text(await call(toolset, "parts", length=1_900_000))) == 1_900_000
        with pytest.raises(FailedAfterEffect, match=r"more than .* 32,000,000 bytes.* ask for less"):
            await call(toolset, "parts", length=2_000_000)
        assert text(await call(toolset, "parts")) == "x"
        await toolset.close()
