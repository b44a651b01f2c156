"""An invocation, from the message to the result."""

from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.tool_context import ToolContext


def add(a: int, b: int, tool_context: ToolContext) -> dict[str, int]:
    """Add two numbers."""
    tool_context.state["sum"] = a + b
    return {"sum": a + b}


def ask(purpose: str) -> dict[str, str]:
    """Ask somebody."""
    return {"status": "pending", "purpose": purpose}


async def test_a_tool_is_called_and_its_response_and_state_are_recorded(serve: Serve) -> None:
    """One tool call records the call, the response with state, and the final text."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), says("three"))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        invocation = await env.client.start("adder", "one and two?")
        result = await invocation.result()
        assert (result.status, result.text, result.state_delta) == ("completed", "three", {"sum": 3})
        assert [event.author async for event in invocation.events()] == ["user", "adder", "adder", "adder"]


async def test_an_invocation_with_one_tool_call_takes_23_events(serve: Serve) -> None:
    """An invocation takes 23 events, which is Temporal's minimum for three activities."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), says("three"))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        invocation = await env.client.start("adder", "one and two?")
        await invocation.result()
        assert len((await invocation.history()).events) == 23
