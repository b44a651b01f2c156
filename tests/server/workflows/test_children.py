"""Called agents run in invocations of their own."""

import asyncio
import contextlib

from temporalio.service import RPCError

from tests.server.conftest import Serve
from tests.steps import run
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.errors import ModelRefused
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def remember(key: str, value: str, tool_context: ToolContext) -> str:
    """Remember a value."""
    tool_context.state[key] = value
    return "ok"


def recall(key: str, tool_context: ToolContext) -> str:
    """Recall a value."""
    return str(tool_context.state.get(key))


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def waiting(invocation: Invocation) -> list[str]:
    """Wait until a call is pending in an invocation that may not exist yet."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(RPCError):
                if pending_calls := await invocation.pending():
                    return [call.function_call_id for call in pending_calls]
            await asyncio.sleep(0.02)


async def test_a_called_agent_is_a_child_workflow_with_its_answer_as_result(serve: Serve) -> None:
    """The ID of a called agent joins those of its parent and its call; the agent receives only the request."""
    child_model = ScriptedModel(says("A short text."))
    child = Agent(name="summarizer", description="Shortens.", model=child_model)
    model = ScriptedModel(calls(("summarizer", {"request": "Shorten: long text"})), says("Here it is."))
    async with serve(Agent(name="writer", model=model, tools=[AgentTool(child)])) as env:
        invocation = await env.client.start("writer", "please")
        assert (await invocation.result()).text == "Here it is."
        called = env.client.invocation(f"{invocation.id}/fc-1")
        assert (await called.result()).text == "A short text."
    assert child_model.requests[0].contents == [{"role": "user", "parts": [{"text": "Shorten: long text"}]}]
    assert responses(model.requests[-1]) == [("summarizer", {"result": "A short text."})]


async def test_state_is_passed_in_and_changes_return_without_temporary_keys(serve: Serve) -> None:
    """Source: adk-semantics 4.2 and 4.3."""
    child_model = ScriptedModel(
        calls(("recall", {"key": "a"}), ("recall", {"key": "temp:b"})),
        calls(("remember", {"key": "c", "value": "3"}), ("remember", {"key": "temp:d", "value": "4"})),
        says("done"),
    )
    child = Agent(name="helper", model=child_model, tools=[recall, remember])
    model = ScriptedModel(
        calls(("remember", {"key": "temp:b", "value": "2"})), calls(("helper", {"request": "go"})), says("done")
    )
    result = await run(
        serve(Agent(name="boss", model=model, tools=[remember, AgentTool(child)])), "boss", "go", state={"a": "1"}
    )
    assert responses(child_model.requests[1]) == [("recall", {"result": "1"}), ("recall", {"result": "None"})]
    assert result.state_delta == {"c": "3"}


async def test_a_waiting_child_is_answered_like_any_invocation(serve: Serve) -> None:
    """The parent waits for it; ADK's returns an error instead."""
    child_model = ScriptedModel(calls(("pay", {"amount": 5})), says("paid"))
    child = Agent(name="payer", model=child_model, tools=[FunctionTool(pay, require_confirmation=True)])
    model = ScriptedModel(calls(("payer", {"request": "pay 5"})), says("It is paid."))
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(child)])) as env:
        invocation = await env.client.start("boss", "go")
        called = env.client.invocation(f"{invocation.id}/fc-1")
        assert await waiting(called) == ["fc-1"]
        await called.approve()
        assert (await invocation.result()).text == "It is paid."


async def test_a_failed_child_is_reported_to_the_parents_model(serve: Serve) -> None:
    """The parent's model receives the error of a failed child as a tool's error."""
    child = Agent(name="helper", model=ScriptedModel(ModelRefused("no such model", status=404)))
    model = ScriptedModel(calls(("helper", {"request": "go"})), says("The helper is out."))
    assert (
        await run(serve(Agent(name="boss", model=model, tools=[AgentTool(child)])), "boss", "go")
    ).text == "The helper is out."
    assert responses(model.requests[-1]) == [
        ("helper", {"error": "no such model", "error_type": "ModelFailed"}),
    ]


async def test_skip_summarization_shows_the_childs_answer_and_ends(serve: Serve) -> None:
    """The response has an additional text part for readers. Source: adk-semantics 4.5."""
    child = Agent(name="summarizer", model=ScriptedModel(says("Short.")))
    model = ScriptedModel(calls(("summarizer", {"request": "x"})))
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(child, skip_summarization=True)])) as env:
        invocation = await env.client.start("boss", "go")
        result = await invocation.result()
        assert (result.status, result.text) == ("completed", "Short.")
        last = [event async for event in invocation.events()][-1]
        assert last.is_final_response()
        assert last.actions.skip_summarization
    assert len(model.requests) == 1


async def test_agents_call_agents_three_levels_deep(serve: Serve) -> None:
    """IDs grow by one call for each level."""
    low = Agent(name="low", model=ScriptedModel(says("bottom")))
    middle = Agent(
        name="middle",
        model=ScriptedModel(calls(("low", {"request": "down"})), says("middle of bottom")),
        tools=[AgentTool(low)],
    )
    model = ScriptedModel(calls(("middle", {"request": "down"})), says("top"))
    async with serve(Agent(name="high", model=model, tools=[AgentTool(middle)])) as env:
        invocation = await env.client.start("high", "go")
        assert (await invocation.result()).text == "top"
        assert (await env.client.invocation(f"{invocation.id}/fc-1/fc-1").result()).text == "bottom"
