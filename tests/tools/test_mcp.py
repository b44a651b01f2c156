"""McpToolset against real servers: over stdio, and over streamable HTTP. Source: adk-semantics 10."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tools import ReadonlyContext, ToolContext, authoring_problems, declare, outcome_of, toolbox
from tools.mcp import (
    McpCallFailed,
    McpConnectionError,
    McpToolset,
    OutcomeUnknown,
    StdioConnectionParams,
    StdioServerParameters,
    StreamableHTTPConnectionParams,
)
from waystation.agents import LlmAgent

SERVER = str(Path(__file__).parent / "mcp_server.py")
LIMIT_S = 30.0
Make = Callable[..., McpToolset]


def stdio(**settings: Any) -> McpToolset:
    program = StdioServerParameters(command=sys.executable, args=[SERVER, "stdio"])
    return McpToolset(connection_params=StdioConnectionParams(server_params=program, timeout=LIMIT_S), **settings)


@contextmanager
def http_server(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen([sys.executable, SERVER, "http", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def over_http(port: str, **settings: Any) -> McpToolset:
    parameters = StreamableHTTPConnectionParams(url=f"http://127.0.0.1:{port}/mcp", timeout=LIMIT_S)
    return McpToolset(connection_params=parameters, **settings)


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with http_server() as (port, _):
        yield port


@pytest.fixture(params=["stdio", "http"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Make toolsets over each transport, and close them in the end."""
    made: list[McpToolset] = []

    def one(**settings: Any) -> McpToolset:
        if request.param == "stdio":
            made.append(stdio(**settings))
        else:
            made.append(over_http(request.getfixturevalue("port"), **settings))
        return made[-1]

    yield one
    for toolset in made:
        await toolset.close()


@pytest.fixture
async def local() -> AsyncIterator[McpToolset]:
    toolset = stdio()
    yield toolset
    await toolset.close()


def at(invocation_id: str = "i-1", **state: Any) -> ReadonlyContext:
    return ReadonlyContext(invocation_id=invocation_id, state=state)


async def call(toolset: McpToolset, name: str, /, *, context: ToolContext | None = None, **args: Any) -> Any:
    """Call a tool as the activity does: found again by its name, in a task of its own."""

    async def run() -> Any:
        found = await toolbox(LlmAgent(name="a", tools=[toolset]), at())
        return await found[name].run_async(args=args, tool_context=context or ToolContext())

    return await asyncio.create_task(run())


def text(result: Any) -> str:
    return str(result["content"][0]["text"])


# Listing


async def test_tools_are_listed_by_name(make: Make) -> None:
    """Servers promise no order; a name that is reserved is left out."""
    names = [tool.name for tool in await make().get_tools(at())]
    assert names == sorted(names)
    assert "add" in names
    assert "transfer_to_agent" not in names


async def test_a_tool_is_declared_with_its_servers_schemas(make: Make) -> None:
    """As they are."""
    (tool,) = await make(tool_filter=["add"]).get_tools(at())
    declared = declare(tool)
    assert declared is not None
    assert (declared["name"], declared["description"]) == ("add", "Add two numbers.")
    assert declared["parametersJsonSchema"]["properties"]["a"] == {"title": "A", "type": "integer"}
    assert declared["parametersJsonSchema"]["required"] == ["a", "b"]
    assert declared["responseJsonSchema"]["properties"]["total"]["type"] == "integer"


async def test_filter_and_prefix(make: Make) -> None:
    """The filter knows the server's names, the model the longer ones."""
    toolset = make(tool_filter=lambda tool, readonly_context: tool.name in ("add", "fail"), tool_name_prefix="math")
    tools = await toolbox(LlmAgent(name="a", tools=[toolset]), at())
    assert list(tools) == ["math_add", "math_fail"]
    answer = await tools["math_add"].run_async(args={"a": 1, "b": 2}, tool_context=ToolContext())
    assert answer["structuredContent"] == {"total": 3}


async def test_an_invocation_uses_one_listing(local: McpToolset) -> None:
    """Another one asks again; each task may be that of another activity."""
    await local.get_tools(at("i-1"))
    (first, second) = [await local._listed(at("i-1")) for _ in range(2)]
    assert first is second
    assert await local._listed(at("i-2")) is not first


async def test_a_listing_may_be_shared_for_a_time() -> None:
    """With ADK's setting, which counts in seconds."""
    toolset = stdio(tool_list_cache_ttl_seconds=3600)
    assert await toolset._listed(at("i-1")) is await toolset._listed(at("i-2"))
    await toolset.close()


async def test_a_tool_that_the_server_adds_is_seen(local: McpToolset) -> None:
    """At the latest by the next invocation."""
    assert text(await call(local, "grow")) == "ok"
    assert "grown" in [tool.name for tool in await local.get_tools(at("i-2"))]
    local._listings.clear()
    assert text(await call(local, "grown")) == "grown"


# Calling


async def test_a_result_is_given_as_it_came(make: Make) -> None:
    """With the protocol's names, as ADK gives it."""
    result = await call(make(), "add", a=1, b=2)
    assert result["structuredContent"] == {"total": 3}
    assert result["content"][0]["type"] == "text"
    assert result["isError"] is False
    assert "resultType" not in result
    assert outcome_of(result, context=ToolContext()).response == result


async def test_an_error_of_the_tool_is_told(make: Make) -> None:
    """It is a result like any other, and the model reads it."""
    result = await call(make(), "fail", reason="out of paper")
    assert result["isError"] is True
    assert "out of paper" in text(result)


async def test_a_call_that_the_server_refuses_raises(make: Make) -> None:
    """The activity tells the model."""
    with pytest.raises(McpCallFailed, match="MCP tool execution failed: Come back tomorrow"):
        await call(make(), "refuse")


async def test_calls_of_many_tasks_share_a_session(local: McpToolset) -> None:
    """The program is started once; anyio's scopes are not entered here and left there."""
    answers = await asyncio.gather(*(call(local, "process") for _ in range(8)))
    assert len({text(answer) for answer in answers}) == 1


async def test_progress_is_a_heartbeat(make: Make) -> None:
    """And is told to the author's callback, which may be made for each call."""
    told: list[Any] = []
    beats: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    def factory(tool_name: str, *, callback_context: Any = None, **_: Any) -> Callable[..., Awaitable[None]]:
        told.append((tool_name, callback_context.function_call_id))
        return on_progress

    context = ToolContext(function_call_id="fc-1", heartbeat=lambda *details: beats.append(details))
    assert text(await call(make(progress_callback=factory), "steps", context=context)) == "done"
    assert told == [("steps", "fc-1"), (1, 2, "half"), (2, 2, "whole")]
    assert len(beats) == 2


async def test_resources_are_read(make: Make) -> None:
    """By their names."""
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
async def test_a_person_may_have_to_agree(local: McpToolset, required: Any, args: Any, expected: bool) -> None:
    """Always, or by those of the arguments that the function takes."""
    local.require_confirmation = required
    (tool,) = [tool for tool in await local.get_tools(at()) if tool.name == "add"]
    assert await tool.check_require_confirmation(args, ToolContext()) is expected


async def test_what_a_repetition_does_is_what_the_server_says(local: McpToolset) -> None:
    """A server that says nothing is taken at its worst."""
    effects = {tool.name: tool.effect for tool in await local.get_tools(at())}
    assert (effects["add"], effects["set_limit"], effects["pay"]) == ("read", "repeatable", "once")


async def test_the_author_may_know_better() -> None:
    """For one tool or all."""
    toolset = stdio(effect={"pay": "repeatable"})
    effects = {tool.name: tool.effect for tool in await toolset.get_tools(at())}
    assert (effects["pay"], effects["process"]) == ("repeatable", "once")
    await toolset.close()


# Broken connections


async def test_a_call_that_may_have_taken_effect_is_not_repeated(local: McpToolset, tmp_path: Path) -> None:
    """The server died after it got the request."""
    journal = tmp_path / "journal"
    with pytest.raises(OutcomeUnknown, match="Whether it took effect is unknown; it was not repeated"):
        await call(local, "pay", journal=str(journal))
    assert journal.read_text() == "x"


async def test_a_call_that_does_no_harm_twice_is_repeated(local: McpToolset, tmp_path: Path) -> None:
    """In a new session."""
    journal = tmp_path / "journal"
    assert text(await call(local, "set_limit", journal=str(journal))) == "survived"
    assert journal.read_text() == "xx"


async def test_a_program_that_has_ended_is_started_again() -> None:
    """Whether or not that was noticed before the next call, which does no harm twice."""
    toolset = stdio(effect="read")
    first = int(text(await call(toolset, "process")))
    psutil.Process(first).kill()
    assert int(text(await call(toolset, "process"))) != first
    await toolset.close()


@pytest.mark.parametrize("protocol", [[], ["legacy"]])
async def test_a_server_that_was_started_again_is_used_again(protocol: list[str]) -> None:
    """Whether its protocol has sessions, which it then has forgotten, or not."""
    with http_server("0", *protocol) as (port, _):
        toolset = over_http(port)
        first = text(await call(toolset, "process"))
    with http_server(port, *protocol):
        assert text(await call(toolset, "process")) != first
        await toolset.close()


async def test_a_server_that_is_gone_is_said_to_be_gone(logs: list[MutableMapping[str, Any]]) -> None:
    """A call that could not be sent is not of unknown outcome."""
    with http_server() as (port, _):
        toolset = over_http(port)
        tools = await toolbox(LlmAgent(name="a", tools=[toolset]), at())
        await call(toolset, "process")
    with pytest.raises(McpConnectionError) as raised:
        await tools["process"].run_async(args={}, tool_context=ToolContext())
    assert not isinstance(raised.value, OutcomeUnknown)
    toolset._listings.clear()
    assert await toolbox(LlmAgent(name="a", tools=[toolset]), at()) == {}
    assert logs[-1]["event"] == "toolset.failed"
    await toolset.close()


async def test_a_server_that_dies_while_it_works_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    """Over HTTP too."""
    with http_server() as (port, _):
        toolset = over_http(port)
        with pytest.raises(OutcomeUnknown):
            await call(toolset, "pay", journal=str(tmp_path / "journal"))
        await toolset.close()


async def test_a_program_that_cannot_be_started_is_an_error_at_once() -> None:
    """Not a wait."""
    toolset = McpToolset(connection_params=StdioServerParameters(command="no-such-program"))
    with pytest.raises(McpConnectionError, match="The MCP server cannot be used: FileNotFoundError"):
        await toolset.get_tools(at())
    await toolset.close()


async def test_a_program_that_says_nothing_is_given_up() -> None:
    """After the connection's time."""
    program = StdioServerParameters(command=sys.executable, args=["-c", "import sys; sys.stdin.read()"])
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=program, timeout=0.2))
    with pytest.raises(McpConnectionError, match="did not answer within"):
        await toolset.get_tools(at())
    await toolset.close()


# Headers


async def test_each_set_of_headers_has_its_own_session(port: str) -> None:
    """They tell who asks."""

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
async def test_a_credential_goes_into_a_header(port: str, scheme: Any, credential: Any, header: str, sent: str) -> None:
    """And wins over the provider's."""
    toolset = over_http(
        port, auth_scheme=scheme, auth_credential=credential, header_provider=lambda context: {header.upper(): "other"}
    )
    assert text(await call(toolset, "headers", name=header)) == sent
    await toolset.close()


# The end


async def test_closing_ends_the_program() -> None:
    """And the toolset may be used again."""
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
    """Where they are written, or by `worker.py check`."""
    with pytest.raises(ValueError, match="Missing connection params in McpToolset"):
        McpToolset(connection_params=None)
    with pytest.raises(ValueError, match="tool_list_cache_ttl_seconds must be positive, got 0"):
        stdio(tool_list_cache_ttl_seconds=0)
    (problem,) = authoring_problems(LlmAgent(name="a", tools=[stdio(effect="twice")]))
    assert str(problem) == "Tool 'McpToolset': `effect` is 'twice'; use 'read', 'repeatable' or 'once'."
