"""Every wait ends, no call is approved by timeout, and a late answer does not count. Uses a server that skips time."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from tests.agents import PAY, Till, ask, model_of, payer
from tests.server.workflows.skipping import DAY, SkipTime
from tests.server.workflows.test_children import waiting as begun
from tests.steps import (
    approve_and_finish,
    catch_refusal,
    count_events,
    force_continue_as_new,
    ignored_reasons,
    start_and_wait,
    tool_responses,
    wait_for_calls,
    wait_until,
    wait_until_quiet,
)
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.budget import Budget
from waystation.core.contract import WORKFLOW
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, TimeNotSkipped, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


def ticket() -> JsonObject:
    """Open a ticket."""
    return {"status": "pending"}


def expired(tool: str) -> JsonObject:
    """Return the model's response for a call that expired."""
    return {
        "status": "expired",
        "error": f"Nobody answered the call of `{tool}` before its deadline; it is not approved.",
        "error_type": "Expired",
    }


async def test_by_default_a_call_waits_thirty_days(serve_and_skip: SkipTime) -> None:
    """A call is pending after 29 days; after 30 it has expired without running, and the model is informed."""
    till, verified = Till(), list[Invocation]()
    agent = payer(till.pay, PAY, says("Too late."))
    async with serve_and_skip(agent, verified) as env:
        invocation = await env.client.start("payer", "pay 5")
        verified.append(invocation)
        await wait_for_calls(invocation, "fc-1")
        await env.skip(days=29)
        await wait_for_calls(invocation, "fc-1")
        assert len(model_of(agent).requests) == 1
        await env.skip(days=2)
        assert (await invocation.result()).text == "Too late."
        assert tool_responses(model_of(agent).requests[1]) == [expired("pay")]
        assert till.paid == []


@pytest.mark.parametrize("function", [ask, ticket])
async def test_an_expired_long_running_call_is_reported_to_the_model(
    serve_and_skip: SkipTime, function: Callable[[], Any]
) -> None:
    """An expired call is closed, with or without an interim response, as expired instead of approved."""
    verified = list[Invocation]()
    replies = [says("Asked.")] if function is ticket else []
    model = ScriptedModel(calls((function.__name__, {})), *replies, says("Nobody answered."))
    tool = LongRunningFunctionTool(function, deadline=DAY)
    async with serve_and_skip(Agent(name="asker", model=model, tools=[tool]), verified) as env:
        invocation = await env.client.start("asker", "ask")
        verified.append(invocation)
        await wait_for_calls(invocation, "fc-1")
        await wait_until_quiet(invocation)
        await env.skip(days=2)
        assert (await invocation.result()).text == "Nobody answered."
        assert tool_responses(model.requests[-1]) == [expired(function.__name__)]


async def test_an_update_after_the_deadline_is_refused_as_expired(serve_and_skip: SkipTime) -> None:
    """Any action is refused with a type and without a trace; another call of the invocation keeps waiting."""
    till, verified = Till(), list[Invocation]()
    model = ScriptedModel(calls(("pay", {"amount": 5}), ("ask", {})), says("Done."))
    tools = [FunctionTool(till.pay, require_confirmation=True, deadline=DAY), LongRunningFunctionTool(ask)]
    async with serve_and_skip(Agent(name="payer", model=model, tools=tools), verified) as env:
        invocation = await env.client.start("payer", "pay 5")
        verified.append(invocation)
        await wait_for_calls(invocation, "fc-1", "fc-2")
        await env.skip(days=2)
        await wait_for_calls(invocation, "fc-2")
        await wait_until_quiet(invocation)
        before = await count_events(invocation)
        assert await catch_refusal(invocation.approve("fc-1")) == "Expired"
        assert await catch_refusal(invocation.reject("fc-1")) == "Expired"
        assert await catch_refusal(invocation.approve("fc-1", digest="0" * 32)) == "DigestMismatch"
        assert await count_events(invocation) == before
        await invocation.approve("fc-1", signal=True)
        await approve_and_finish(invocation, "fc-2")
        assert ignored_reasons((await invocation.log()).state.events) == ["Expired"]
        assert (tool_responses(model.requests[1]), till.paid) == ([expired("pay"), {"status": "approved"}], [])


async def test_a_deadline_that_passes_without_a_worker_has_passed(serve_and_skip: SkipTime) -> None:
    """The worker receives the signal before the timer, and yet the call has expired."""
    till, verified = Till(), list[Invocation]()
    agent = payer(till.pay, PAY, says("Too late."), deadline=DAY)
    async with serve_and_skip(agent, verified) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay 5"), "fc-1")
        await wait_until_quiet(invocation)
    with pytest.raises(TimeNotSkipped, match="The worker of this environment does not run"):
        await env.skip(days=2)
    await invocation.approve("fc-1", signal=True)
    async with serve_and_skip(agent, verified):
        verified.append(invocation)
        assert (await invocation.result()).text == "Too late."
        assert (tool_responses(model_of(agent).requests[1]), till.paid) == ([expired("pay")], [])
        assert ignored_reasons((await invocation.log()).state.events) == ["Expired"]


async def test_answers_before_the_deadline_count_without_a_running_worker(serve_and_skip: SkipTime) -> None:
    """The server's time of each signal decides, also for an answer that must be verified and after other signals."""
    till, verified = Till(), list[Invocation]()
    pays = calls(*(("pay", {"amount": amount}) for amount in (1, 2, 3)))
    agent = payer(till.pay, pays, says("Done."), deadline=timedelta(seconds=4))
    async with serve_and_skip(agent, verified) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay"), "fc-1", "fc-2", "fc-3")
        await wait_until_quiet(invocation)
    await invocation.handle.signal("answer", "nonsense")
    await invocation.approve("fc-1", signal=True)
    await invocation.reject("fc-1", signal=True)
    await invocation.answer("edit", "fc-3", args={"amount": 30}, signal=True)
    await wait_until(lambda: fired(invocation), "the timer firing")
    await invocation.approve("fc-2", signal=True)
    async with serve_and_skip(agent, verified):
        verified.append(invocation)
        assert (await invocation.result()).text == "Done."
        edited = {"paid": 30, "edited": {"args": {"amount": {"from": 3, "to": 30}}}}
        assert tool_responses(model_of(agent).requests[1]) == [{"paid": 1}, expired("pay"), edited]
        assert sorted(till.paid) == [1, 30]
        ignored = ignored_reasons((await invocation.log()).state.events)
        assert sorted(ignored) == ["AlreadyAnswered", "Expired", "InvalidAnswer"]


async def fired(invocation: Invocation) -> bool:
    """Return whether a timer of the invocation fired."""
    events = (await invocation.history()).events
    return any(event.event_type == EventType.EVENT_TYPE_TIMER_FIRED for event in events)


async def test_waiting_for_a_person_is_not_working_time(serve_and_skip: SkipTime) -> None:
    """An hour's budget lasts for twenty days of waiting, also in a called agent."""
    till, verified = Till(), list[Invocation]()
    helper = Agent(
        name="helper",
        description="Pays.",
        model=ScriptedModel(calls(("pay", {"amount": 5})), says("Paid.")),
        tools=[FunctionTool(till.pay, require_confirmation=True)],
    )
    model = ScriptedModel(calls(("helper", {"request": "pay 5"})), says("The helper paid."))
    async with serve_and_skip(Agent(name="boss", model=model, tools=[AgentTool(helper)]), verified) as env:
        invocation = await env.client.start("boss", "pay 5", budget=Budget(max_wall_s=3_600))
        verified.append(invocation)
        called = env.client.invocation(f"{invocation.id}/fc-1")
        assert await begun(called) == ["fc-1"]
        await env.skip(days=20)
        await called.approve("fc-1")
        result = await invocation.result()
        assert (result.status, result.text, till.paid) == ("completed", "The helper paid.", [5])
        assert result.spent is not None
        assert result.spent.working_s < 3_600


@pytest.mark.parametrize(
    ("budget", "waits", "deadline"),
    [({}, "fc-1", DAY), ({"max_llm_calls": 1, "on_exhausted": "ask"}, "budget-1", 30 * DAY)],
    ids=["a call", "a question for more budget"],
)
async def test_a_pending_call_keeps_its_deadline_over_continue_as_new(
    serve_and_skip: SkipTime, budget: JsonObject, waits: str, deadline: timedelta
) -> None:
    """A pending call expires neither earlier nor later, the model is informed, and a later answer is refused."""
    till, verified = Till(), list[Invocation]()
    agent = payer(till.pay, PAY, says("Too late."), require_confirmation=not budget, deadline=DAY)
    async with serve_and_skip(agent, verified) as env:
        params = {"agent": "payer", "message": "pay 5", "cut_after": 30, "budget": budget}
        temporal, queue = env.client.temporal, env.client.task_queue
        handle = await temporal.start_workflow(WORKFLOW, params, id=f"cut-{queue}", task_queue=queue)
        invocation = Invocation(env.client, handle)
        verified.append(invocation)
        (asked_for,) = await wait_for_calls(invocation, waits)
        await force_continue_as_new(invocation)
        await env.skip(days=deadline.days, hours=-1)
        assert await wait_for_calls(invocation, waits) == [asked_for]
        await env.skip(hours=2)
        assert (await invocation.result()).text == "Too late."
        assert till.paid == ([5] if budget else [])
        assert len(await invocation.histories()) > 1
