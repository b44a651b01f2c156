"""Connections to MCP servers: broken ones, one for each set of headers, and closed ones."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from tests.unit.tools.mcp_calls import LIMIT_S, at, call, http_server, over_http, stdio, text
from waystation.agents import LlmAgent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.agents.toolbox import ToolsetFailure, list_tools
from waystation.apps.registry import authoring_problems
from waystation.tools.mcp_tool import (
    McpConnectionError,
    McpToolset,
    OutcomeUnknown,
    SseConnectionParams,
    StdioConnectionParams,
    StdioServerParameters,
    StreamableHTTPConnectionParams,
)
from waystation.tools.tool_context import ToolContext


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with http_server() as (port, _):
        yield port


@pytest.fixture
async def local() -> AsyncIterator[McpToolset]:
    toolset = stdio()
    yield toolset
    await toolset.close()


async def test_a_server_with_the_older_transport_is_supported(tmp_path: Path) -> None:
    """Calls over the older transport are not repeated once they were sent."""
    with http_server("0", "sse") as (port, _):
        toolset = McpToolset(
            connection_params=SseConnectionParams(url=f"http://127.0.0.1:{port}/sse", timeout=LIMIT_S),
            header_provider=lambda context: {"X-User": "ann"},
        )
        assert (await call(toolset, "add", a=1, b=2))["structuredContent"] == {"total": 3}
        journal = tmp_path / "journal"
        with pytest.raises(OutcomeUnknown):
            await call(toolset, "pay", journal=str(journal))
        assert journal.read_text() == "x"
        await toolset.close()


# Broken connections


async def test_a_call_that_may_have_taken_effect_is_not_repeated(local: McpToolset, tmp_path: Path) -> None:
    """The server died after it received the request."""
    journal = tmp_path / "journal"
    with pytest.raises(OutcomeUnknown, match="Whether it took effect is unknown; it was not repeated"):
        await call(local, "pay", journal=str(journal))
    assert journal.read_text() == "x"


async def test_a_harmless_call_is_repeated(local: McpToolset, tmp_path: Path) -> None:
    """The repetition uses a new session."""
    journal = tmp_path / "journal"
    assert text(await call(local, "set_limit", journal=str(journal))) == "survived"
    assert journal.read_text() == "xx"


async def test_an_ended_program_is_started_again() -> None:
    """An ended program is started again, whether or not its end was noticed before the next harmless call."""
    toolset = stdio(effect="read")
    first = int(text(await call(toolset, "process")))
    psutil.Process(first).kill()
    assert int(text(await call(toolset, "process"))) != first
    await toolset.close()


@pytest.mark.parametrize("protocol", [[], ["legacy"]])
async def test_a_restarted_server_is_used_again(protocol: list[str]) -> None:
    """A restarted server is used again, with or without sessions, which it has forgotten."""
    with http_server("0", *protocol) as (port, _):
        toolset = over_http(port)
        first = text(await call(toolset, "process"))
    with http_server(port, *protocol):
        assert text(await call(toolset, "process")) != first
        await toolset.close()


async def test_a_missing_server_is_reported_as_missing(logs: list[MutableMapping[str, Any]]) -> None:
    """The outcome of an unsent call is known; the log has the toolset and the reason."""
    with http_server() as (port, _):
        toolset = over_http(port, tool_name_prefix="desk")
        tools = await list_tools(LlmAgent(name="a", tools=[toolset]), at)
        await call(toolset, "desk_process")
    with pytest.raises(McpConnectionError) as raised:
        await tools["desk_process"].run_async(args={}, tool_context=ToolContext())
    assert not isinstance(raised.value, OutcomeUnknown)
    toolset._listings.clear()
    assert await list_tools(LlmAgent(name="a", tools=[toolset]), at) == {}
    assert logs[-1]["event"] == "toolset.failed"
    assert logs[-1]["prefix"] == "desk"
    assert logs[-1]["reason"].startswith(f"The MCP server at 127.0.0.1:{port} cannot be used: ")
    await toolset.close()


class Restarting(BaseHTTPRequestHandler):
    """A server that answers like a proxy while the server behind it restarts."""

    def do_POST(self) -> None:
        self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.mark.parametrize("protocol", [[], ["legacy"]])
async def test_a_server_that_restarts_behind_a_proxy_is_unavailable(protocol: list[str]) -> None:
    """An open session does not turn its HTTP error into a mistake of the author."""
    with http_server("0", *protocol) as (port, _):
        toolset = over_http(port)
        await call(toolset, "process")
    toolset._listings.clear()
    failed: list[ToolsetFailure] = []
    with ThreadingHTTPServer(("127.0.0.1", int(port)), Restarting) as proxy:
        Thread(target=proxy.serve_forever).start()
        await list_tools(LlmAgent(name="a", tools=[toolset]), at, failed=failed)
        await toolset.close()
        proxy.shutdown()
    assert [failure.must_wait for failure in failed] == [True]
    assert failed[0].description.startswith(
        f"Toolset McpToolset did not list its tools: The MCP server at 127.0.0.1:{port}"
    )


async def test_a_tool_that_is_left_out_is_logged_once(logs: list[MutableMapping[str, Any]]) -> None:
    """Tools are listed anew at every step of every invocation."""
    with http_server() as (port, _):
        toolset = over_http(port)
        for _ in range(2):
            await list_tools(LlmAgent(name="a", tools=[toolset]), at)
        await toolset.close()
    assert [line["tool"] for line in logs if line["event"] == "tool.left_out"] == ["transfer_to_agent"]


async def test_a_server_that_dies_during_a_call_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    """The outcome of a call is unknown after the death of its server, over HTTP, too."""
    with http_server() as (port, _):
        toolset = over_http(port)
        with pytest.raises(OutcomeUnknown):
            await call(toolset, "pay", journal=str(tmp_path / "journal"))
        await toolset.close()


async def test_a_program_that_cannot_start_is_an_error_at_once() -> None:
    """The call does not wait for a timeout."""
    toolset = McpToolset(connection_params=StdioServerParameters(command="no-such-program"))
    with pytest.raises(McpConnectionError, match="The MCP server 'no-such-program' cannot be used: FileNotFoundError"):
        await toolset.get_tools(at())
    await toolset.close()


@pytest.mark.parametrize(
    ("parameters", "problems"),
    [
        (
            StdioServerParameters(command="no-such-program"),
            [
                "the server program 'no-such-program' does not exist; install it on the worker's machine, "
                "or pass its path as `command`."
            ],
        ),
        (
            StdioConnectionParams(server_params=StdioServerParameters(command="./serve", cwd="/"), timeout=-1),
            [
                "`timeout` is -1; use a number of seconds above 0.",
                "the server program './serve' does not exist; install it on the worker's machine, or pass "
                "its path as `command`.",
            ],
        ),
        (StdioServerParameters(command=sys.executable), []),
        (StdioServerParameters(command="./" + Path(sys.executable).name, cwd=Path(sys.executable).parent), []),
        (
            StdioServerParameters(command=Path(sys.executable).name, env={"PATH": str(Path(sys.executable).parent)}),
            [],
        ),
        (
            StreamableHTTPConnectionParams(url="127.0.0.1:8000/mcp", sse_read_timeout=0),
            [
                "`sse_read_timeout` is 0; use a number of seconds above 0.",
                "`url` is '127.0.0.1:8000/mcp'; use a URL such as 'http://127.0.0.1:8000/mcp'.",
            ],
        ),
        (StreamableHTTPConnectionParams(url="https://example.com/mcp"), []),
        (
            "http://127.0.0.1:8000/mcp",
            [
                "`connection_params` is a str; use StreamableHTTPConnectionParams, SseConnectionParams or "
                "StdioConnectionParams."
            ],
        ),
    ],
    ids=["missing", "two", "path", "folder", "environment", "url", "fine", "type"],
)
def test_an_impossible_address_is_reported_without_a_connection(parameters: Any, problems: list[str]) -> None:
    """`check` reports an impossible address, because the worker would leave the toolset out of each model call."""
    found = authoring_problems(LlmAgent(name="a", tools=[McpToolset(connection_params=parameters)]))
    assert [str(problem) for problem in found] == [f"Tool 'McpToolset': {problem}" for problem in problems]


async def test_a_silent_program_times_out() -> None:
    """The limit is the timeout of the connection."""
    program = StdioServerParameters(command=sys.executable, args=["-c", "import sys; sys.stdin.read()"])
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=program, timeout=0.2))
    with pytest.raises(McpConnectionError, match="did not respond within"):
        await toolset.get_tools(at())
    await toolset.close()


# Headers


async def test_each_set_of_headers_has_its_own_session(port: str) -> None:
    """Headers identify the user."""

    async def who(context: ReadonlyContext) -> dict[str, str]:
        return {"X-User": str(context.state.get("who", ""))}

    toolset = over_http(port, header_provider=who)
    (tool,) = [tool for tool in await toolset.get_tools(at(who="ann")) if tool.name == "headers"]
    for name in ("ann", "bob", "ann"):
        context = ToolContext(state={"who": name})
        assert text(await tool.run_async(args={"name": "x-user"}, tool_context=context)) == name
    assert len(toolset._sessions._sessions) == 2
    await toolset.close()


@pytest.mark.parametrize(
    ("scheme", "credential", "header", "sent"),
    [
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, {"authType": "apiKey", "apiKey": "k1"}, "x-key", "k1"),
        (
            {"type": "http", "scheme": "bearer"},
            {"authType": "http", "http": {"scheme": "bearer", "credentials": {"token": "t1"}}},
            "authorization",
            "Bearer t1",
        ),
    ],
)
async def test_a_credential_becomes_a_header(port: str, scheme: Any, credential: Any, header: str, sent: str) -> None:
    """A credential becomes a header, which overrides that of the provider."""
    toolset = over_http(
        port, auth_scheme=scheme, auth_credential=credential, header_provider=lambda context: {header.upper(): "other"}
    )
    assert text(await call(toolset, "headers", name=header)) == sent
    await toolset.close()


# Closing


async def test_closing_ends_the_program() -> None:
    """The toolset may be used again."""
    toolset = stdio()
    first = int(text(await call(toolset, "process")))
    await toolset.close()
    assert not psutil.pid_exists(first)
    assert int(text(await call(toolset, "process"))) != first
    await toolset.close()


def test_a_toolset_may_live_in_several_loops() -> None:
    """Agents are module-level objects, and each test or command has its own loop."""
    toolset = stdio()

    async def once() -> int:
        found = int(text(await call(toolset, "process")))
        await toolset.close()
        return found

    assert asyncio.run(once()) != asyncio.run(once())


def test_mistakes_are_found_without_the_server() -> None:
    """Mistakes raise at their place, or `waystation worker check` reports them."""
    with pytest.raises(ValueError, match="Missing connection params in McpToolset"):
        McpToolset(connection_params=None)
    with pytest.raises(ValueError, match="tool_list_cache_ttl_seconds must be positive, got 0"):
        stdio(tool_list_cache_ttl_seconds=0)
    wrong = stdio(effect="twice", auth_scheme={"type": "openIdConnect", "openIdConnectUrl": "https://login.example"})
    problems = authoring_problems(LlmAgent(name="a", tools=[wrong]))
    assert [str(problem) for problem in problems] == [
        "Tool 'McpToolset': `effect` is 'twice'; use 'read', 'repeatable' or 'once'.",
        "Tool 'McpToolset': its authentication cannot be used: raw_auth_credential is required for auth_scheme type "
        "openIdConnect.",
    ]
