"""Toolsets on a real server: one activity lists their tools, another runs them."""

import sys
from typing import Any

import psutil
import pytest

from tests.paths import ROOT
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, start_and_wait, tool_responses
from tests.unit.tools.rest_service import body, serving, spec
from waystation.agents import Agent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.mcp_tool import McpToolset, StdioConnectionParams, StdioServerParameters
from waystation.tools.openapi_tool import OpenAPIToolset
from waystation.tools.tool_context import ToolContext

MCP_SERVER = ROOT / "tests" / "unit" / "tools" / "mcp_server.py"


def offered(request: LlmRequest) -> list[str]:
    return [declared["name"] for declared in request.tools]


class Calculator(BaseToolset):
    """Lists `sub` after `add` has unlocked it, and records that it was closed."""

    closed = 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        def add(a: int, b: int, tool_context: ToolContext) -> int:
            tool_context.state["advanced"] = True
            return a + b

        def sub(a: int, b: int) -> int:
            return a - b

        advanced = readonly_context is not None and readonly_context.state.get("advanced")
        return [FunctionTool(add), FunctionTool(sub)] if advanced else [FunctionTool(add)]

    async def close(self) -> None:
        self.closed += 1


async def test_a_tool_appears_as_soon_as_the_state_unlocks_it(serve: Serve) -> None:
    """The next model call has it, and the toolset is closed with its worker."""
    calculator = Calculator(tool_name_prefix="calc")
    model = ScriptedModel(calls(("calc_add", {"a": 1, "b": 2})), calls(("calc_sub", {"a": 5, "b": 3})), says("done"))
    async with serve(Agent(name="a", tools=[calculator]), model=model) as env:
        assert (await env.client.run("a", "go")).text == "done"
        assert tool_responses(model.requests[-1]) == [{"result": 3}, {"result": 2}]
    assert [offered(request) for request in model.requests] == [["calc_add"], *[["calc_add", "calc_sub"]] * 2]
    assert calculator.closed == 1


async def test_a_tool_that_disappeared_is_unknown(serve: Serve) -> None:
    """The model receives the names of the existing tools."""

    class Fleeting(BaseToolset):
        asked = 0

        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
            def once() -> str:
                return "ran"

            self.asked += 1
            return [FunctionTool(once)] if self.asked == 1 else []

    def always() -> None: ...

    model = ScriptedModel(calls(("once", {})), says("sorry"))
    async with serve(Agent(name="a", tools=[Fleeting(), always]), model=model) as env:
        assert (await env.client.run("a", "go")).text == "sorry"
        (answer,) = tool_responses(model.requests[-1])
        assert answer["error"].startswith(
            "Invoking `once()` failed as no tool with that name is available. The tools you can call are: always."
        )


class Flaky(BaseToolset):
    """Lists a tool with confirmation, but then raises several times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.left = failures
        self.given = False

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        def pay() -> str:
            return "paid"

        if self.given and self.left > 0:
            self.left -= 1
            raise ConnectionError("no network")
        self.given = True
        return [FunctionTool(pay, require_confirmation=True)]


async def approved_call(serve: Serve, toolset: BaseToolset, **options: Any) -> JsonObject:
    """Call and approve the toolset's tool; return the response."""
    model = ScriptedModel(calls(("pay", {})), says("done"))
    async with serve(Agent(name="a", tools=[toolset]), model=model, **options) as env:
        invocation = await start_and_wait(env.client.start("a", "go"), "fc-1")
        await approve_and_finish(invocation, "fc-1")
    (answer,) = tool_responses(model.requests[-1])
    return answer


async def test_an_approved_call_runs_after_a_short_outage_of_its_toolset(serve: Serve) -> None:
    """The call waits for the toolset, whose server may be restarting, because it has only one attempt."""
    assert await approved_call(serve, Flaky(failures=1)) == {"result": "paid"}


@pytest.mark.slow
async def test_tools_of_an_mcp_server_are_activities_like_any_other(serve: Serve) -> None:
    """Concurrent calls share one session, which ends with the worker."""
    program = StdioServerParameters(command=sys.executable, args=[str(MCP_SERVER), "stdio"])
    toolset = McpToolset(
        connection_params=StdioConnectionParams(server_params=program, timeout=30), tool_name_prefix="mcp"
    )
    model = ScriptedModel(
        calls(("mcp_process", {}), ("mcp_process", {}), ("mcp_add", {"a": 1, "b": 2})),
        calls(("mcp_fail", {"reason": "out of paper"})),
        says("done"),
    )
    async with serve(Agent(name="a", tools=[toolset]), model=model) as env:
        invocation = await env.client.start("a", "go")
        assert (await invocation.result()).text == "done"
        first, second, total, failed = tool_responses(model.requests[-1])
        assert first == second
        assert total["structuredContent"] == {"total": 3}
        assert failed["isError"] is True
        history = await invocation.history()
    assert not psutil.pid_exists(int(first["content"][0]["text"]))
    names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    assert [name for name in names if name.startswith("a.")].count("a.mcp_process") == 2


async def test_operations_of_a_service_are_activities_like_any_other(serve: Serve) -> None:
    """Services receive the idempotency key; the credential is not in the history."""
    secret = "hunter2-very-secret"
    with serving() as service:
        fields: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
        toolset = OpenAPIToolset(
            spec_dict=spec(service.url, method="post", requestBody=body(fields)),
            allowed_hosts=[service.host],
            idempotency_header="Idempotency-Key",
            auth_scheme={"type": "http", "scheme": "bearer"},
            auth_credential={"auth_type": "http", "http": {"scheme": "bearer", "credentials": {"token": secret}}},
        )
        model = ScriptedModel(calls(("ask", {"name": "Rex"})), says("done"))
        async with serve(Agent(name="a", tools=[toolset]), model=model) as env:
            invocation = await env.client.start("a", "go")
            assert (await invocation.result()).text == "done"
            (answer,) = tool_responses(model.requests[-1])
            history = await invocation.history()
        (request,) = service.requests
    assert request["headers"]["idempotency-key"] == f"{invocation.id}/fc-1"
    assert request["headers"]["authorization"] == f"Bearer {secret}"
    assert answer["body"] == '{"name": "Rex"}'
    assert secret not in history.to_json()


class Changing(BaseToolset):
    """Lists a tool while `lists` is true, and counts how often the tool runs."""

    def __init__(self, tool: str, *, name: str, lists: bool, asks: bool = False) -> None:
        super().__init__()
        self.tool, self.name, self.lists, self.asks, self.ran = tool, name, lists, asks, 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        def run() -> str:
            self.ran += 1
            return "ran"

        return [FunctionTool(run, name=self.tool, require_confirmation=self.asks)] if self.lists else []


async def test_an_approved_call_does_not_run_on_a_tool_of_another_origin(serve: Serve) -> None:
    """Approvers see the origin, and a tool that gets the name later does not receive the call."""
    bank, other = Changing("pay", name="bank", lists=True, asks=True), Changing("pay", name="other", lists=False)
    model = ScriptedModel(calls(("pay", {})), says("done"))
    async with serve(Agent(name="a", tools=[other, bank]), model=model) as env:
        invocation = await start_and_wait(env.client.start("a", "go"), "fc-1")
        (call,) = await invocation.pending()
        assert call.tool_origin == "toolset:bank"
        other.lists = True
        assert (await approve_and_finish(invocation, "fc-1")).text == "done"
    (answer,) = tool_responses(model.requests[-1])
    assert answer["error_type"] == "DigestMismatch"
    assert (bank.ran, other.ran) == (0, 0)


async def test_an_invented_tool_name_does_not_run_on_a_later_tool(serve: Serve) -> None:
    """An invented call does not run, because no tool decided whether it needs an approval. Callbacks see the call."""
    later = Changing("invented", name="later", lists=False, asks=True)

    def before(tool: BaseTool, args: JsonObject, tool_context: ToolContext) -> None:
        later.lists = True

    def after_model(callback_context: ToolContext, llm_response: LlmResponse) -> None:
        later.lists = llm_response.content is not None and "functionCall" in str(llm_response.content)

    model = ScriptedModel(calls(("invented", {})), says("sorry"))
    agent = Agent(name="a", tools=[later], before_tool_callback=before, after_model_callback=after_model)
    async with serve(agent, model=model) as env:
        assert (await env.client.run("a", "go")).text == "sorry"
    (answer,) = tool_responses(model.requests[-1])
    assert answer["error"].startswith("Invoking `invented()` failed as no tool with that name is available.")
    assert later.ran == 0
