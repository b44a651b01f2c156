"""Invocations are found by search attributes from their first moment."""

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.common import SearchAttributeKey

from tests.server.conftest import Serve
from tests.steps import start_and_finish, wait_until
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.testing import ScriptedModel, calls, says
from waystation.tools import AgentTool, FunctionTool


def pay() -> str:
    """Pay."""
    return "paid"


NAMES = ("WaystationAgent", "WaystationUser", "WaystationSession", "WaystationStatus")
UPSERTED = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES


async def given(invocation: Invocation) -> list[object]:
    """Return the search attributes of an invocation's start, and how often it changed them."""
    history = await invocation.history()
    upserts = sum(event.event_type == UPSERTED for event in history.events)
    found = (await invocation.handle.describe()).typed_search_attributes
    return [*(found.get(SearchAttributeKey.for_keyword(name)) for name in NAMES), upserts]


async def test_an_invocation_is_started_with_them(serve: Serve) -> None:
    """The client sets the constant search attributes, so that an invocation is found before a worker runs it."""
    async with serve(Agent(name="clerk", model=ScriptedModel(says("hello")))) as env:
        invocation = await start_and_finish(env.client.start("clerk", "hello", user_id="dana", session_id="s1"))
        assert await given(invocation) == ["clerk", "dana", "s1", None, 0]


async def test_a_called_agent_is_started_with_them(serve: Serve) -> None:
    """A caller that uses search attributes starts called agents with them."""
    child = Agent(name="child", model=ScriptedModel(says("done")))
    model = ScriptedModel(calls(("child", {"request": "work"})), says("it is done"))
    async with serve(Agent(name="caller", model=model, tools=[AgentTool(child)])) as env:
        invocation = await start_and_finish(env.client.start("caller", "hello", user_id="dana"))
        called = env.client.invocation(f"{invocation.id}/fc-1")
        assert await given(called) == ["child", "dana", None, None, 0]


async def test_an_invocation_started_without_them_sets_them_itself(serve: Serve) -> None:
    """An invocation started by the `temporal` CLI sets its search attributes itself."""
    async with serve(Agent(name="clerk", model=ScriptedModel(says("hello")))) as env:
        handle = await env.client.temporal.start_workflow(
            "AgentInvocation", {"agent": "clerk", "message": "hello"}, id="by-hand", task_queue=env.client.task_queue
        )
        await handle.result()
        assert await given(env.client.invocation("by-hand")) == ["clerk", "user", None, "running", 1]


@pytest.mark.parametrize("id", ["it's", 'a "b" \\ c', "a_b", "x' OR WorkflowId STARTS_WITH 'a"])
async def test_what_waits_below_an_invocation_is_listed_whatever_its_id(serve: Serve, id: str) -> None:
    """An ID does not affect the query's grammar, and `_` stands for itself."""
    child = Agent(
        name="child",
        model=ScriptedModel(calls(("pay", {})), says("done")),
        tools=[FunctionTool(pay, require_confirmation=True)],
    )
    script = [calls(("child", {"request": "work"})), says("it is done")]
    async with serve(Agent(name="caller", model=ScriptedModel(*script), tools=[AgentTool(child)])) as env:
        invocation = await env.client.start("caller", "hello", id=id)

        async def below(id: str) -> list[str]:
            return [call.invocation_id for call in await env.client.approvals.pending(below=id)]

        assert await wait_until(lambda: below(id), "what the child waits for") == [f"{id}/fc-1"]
        assert await below("a%b") == await below("") == []
        await env.client.invocation(f"{id}/fc-1").approve()
        await invocation.result()
