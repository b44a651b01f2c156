"""Invocations are found by search attributes from their first moment."""

from temporalio.api.enums.v1 import EventType

from tests.conftest import Serve
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.testing import ScriptedModel, calls, says
from waystation.tools import AgentTool
from workflows.search_attributes import AGENT, SESSION, STATUS, USER

UPSERTED = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES


async def given(invocation: Invocation) -> list[object]:
    """Return what an invocation was started with, and how often it changed that."""
    history = await invocation.history()
    upserts = sum(event.event_type == UPSERTED for event in history.events)
    found = (await invocation.handle.describe()).typed_search_attributes
    return [*(found.get(key) for key in (AGENT, USER, SESSION, STATUS)), upserts]


async def test_an_invocation_is_started_with_them(serve: Serve) -> None:
    """The client sets what never changes, so nobody has to wait for a worker to find what he has started."""
    async with serve(Agent(name="clerk", model=ScriptedModel(says("hello")))) as env:
        invocation = await env.client.start("clerk", "hello", user_id="dana", session_id="s1")
        await invocation.result()
        assert await given(invocation) == ["clerk", "dana", "s1", "running", 0]


async def test_a_called_agent_is_started_with_them(serve: Serve) -> None:
    """Its caller knows that they exist."""
    child = Agent(name="child", model=ScriptedModel(says("done")))
    model = ScriptedModel(calls(("child", {"request": "work"})), says("it is done"))
    async with serve(Agent(name="caller", model=model, tools=[AgentTool(child)])) as env:
        invocation = await env.client.start("caller", "hello", user_id="dana")
        await invocation.result()
        called = env.client.invocation(f"{invocation.id}/fc-1")
        assert await given(called) == ["child", "dana", None, "running", 0]


async def test_an_invocation_started_without_them_sets_them_itself(serve: Serve) -> None:
    """As by the `temporal` CLI, in whatever namespace."""
    async with serve(Agent(name="clerk", model=ScriptedModel(says("hello")))) as env:
        handle = await env.client.temporal.start_workflow(
            "AgentInvocation", {"agent": "clerk", "message": "hello"}, id="by-hand", task_queue=env.client.task_queue
        )
        await handle.result()
        assert await given(env.client.invocation("by-hand")) == ["clerk", "user", None, "running", 1]
