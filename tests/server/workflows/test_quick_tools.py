"""A quick tool runs inside the workflow task that handles the reply, and as an ordinary activity if that fails."""

import asyncio
import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHistory

from tests.server.conftest import Serve, verify_tree
from tests.steps import (
    PATIENT_SETTINGS,
    QUICK_SETTINGS,
    approve_and_finish,
    limit_quick_calls,
    start_and_finish,
    start_and_get_call,
    start_and_wait,
    tool_responses,
    wait_for_hold,
    wait_until,
)
from waystation.agents import Agent, BaseAgent, ParallelAgent
from waystation.core.contract import WORKFLOW
from waystation.core.log import CallReturned
from waystation.core.payload import JsonObject
from waystation.history import is_local_activity
from waystation.models import LlmResponse
from waystation.testing import FunctionModel, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

SOON = limit_quick_calls(0.05)


CACHED: JsonObject = {"max_cached_workflows": 10}
"""Without a cache, calls are not quick."""


def quick(function: Any, **settings: Any) -> FunctionTool:
    """Return a quick tool."""
    return FunctionTool(function, effect="read", quick=True, **settings)


def look(place: str, tool_context: ToolContext) -> JsonObject:
    """Look."""
    tool_context.state[place] = "seen"
    return {"place": place}


def looker(*tools: Any, times: int = 1) -> tuple[Agent, ScriptedModel]:
    """Return an agent that calls `look` with different places in one reply, and its model."""
    model = ScriptedModel(calls(*(("look", {"place": f"p{n}"}) for n in range(times))), says("Seen."))
    return Agent(name="looker", model=model, tools=list(tools) or [quick(look)]), model


def kinds(history: WorkflowHistory) -> Counter[str]:
    """Return how many markers of local activities a history has, and how many activities of each type."""
    scheduled = (event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events)
    counted = Counter(filter(None, scheduled))
    counted["marker"] = sum(map(is_local_activity, history.events))
    return counted


async def test_a_quick_call_adds_one_event(serve: Serve) -> None:
    """The call is recorded in a marker, and the next model call is scheduled in the same workflow task."""
    agent, model = looker()
    async with serve(agent, **CACHED, settings=PATIENT_SETTINGS) as env:
        invocation = await env.client.start("looker", "look")
        assert (await invocation.result()).text == "Seen."
        history = await invocation.history()
        assert (await invocation.state())["p0"] == "seen"
    assert tool_responses(model.requests[1]) == [{"place": "p0"}]
    assert kinds(history) == {"call_model": 2, "marker": 1}
    assert len(history.events) == 18


async def test_a_worker_without_a_cache_runs_ordinary_activities(serve: Serve) -> None:
    """The SDK could cancel its local activities, and repeat them only after the timeout of the workflow task."""
    agent, _ = looker()
    async with serve(agent, max_cached_workflows=0) as env:
        invocation = await start_and_finish(env.client.start("looker", "look"))
        assert kinds(await invocation.history()) == {"call_model": 2, "marker": 0, "looker.look": 1}


async def test_quick_calls_of_one_reply_run_in_one_workflow_task(serve: Serve) -> None:
    """Each call adds one event. The log has the results in the order of the calls, whichever returned first."""
    last_ran = asyncio.Event()

    async def look(place: str) -> str:
        """Look, where the others have looked."""
        if place == "p4":
            last_ran.set()
        await last_ran.wait()
        return place

    agent, model = looker(quick(look), times=5)
    async with serve(agent, **CACHED, settings=PATIENT_SETTINGS) as env:
        invocation = await env.client.start("looker", "look")
        assert (await invocation.result()).text == "Seen."
        history, log = await invocation.history(), await invocation.log()
    assert tool_responses(model.requests[1]) == [{"result": f"p{n}"} for n in range(5)]
    returned = [entry.body.outcome for entry in log.entries if isinstance(entry.body, CallReturned)]
    assert [outcome.function_call_id for outcome in returned] == [f"fc-{n}" for n in range(1, 6)]
    assert len(history.events) == 22


async def test_a_slow_call_runs_again_as_an_ordinary_activity(serve: Serve) -> None:
    """After the time limit, the workflow task ends, and the call has the time that ordinary calls have."""
    runs = list[bool]()

    async def look(place: str) -> str:
        """Look."""
        runs.append(activity.info().is_local)
        if activity.info().is_local:
            await asyncio.Event().wait()
        return place

    agent, model = looker(quick(look))
    async with serve(agent, **CACHED, settings=SOON, verify=False) as env:
        invocation = await env.client.start("looker", "look")
        assert (await invocation.result()).text == "Seen."
        history = await invocation.history()
        await verify_tree(invocation, SOON.workflow)
    assert tool_responses(model.requests[1]) == [{"result": "p0"}]
    assert kinds(history) == {"call_model": 2, "marker": 1, "looker.look": 1}
    assert runs == [True, False]


async def test_a_call_without_its_tool_is_held_like_any_other(serve: Serve) -> None:
    """During a deployment, the worker that runs the workflow may lack the tool; the call does not fail."""
    tools = [quick(look)]

    def deploy(_: object) -> LlmResponse | str:
        if not (agent.tools and tools):
            return "Seen."
        agent.tools = []
        return calls(("look", {"place": "p0"}))

    agent = Agent(name="looker", model=FunctionModel(deploy), tools=tools)
    async with serve(agent, **CACHED, settings=QUICK_SETTINGS, verify=False) as env:
        invocation = await env.client.start("looker", "look")
        assert (await wait_for_hold(invocation))["reason"] == "tool_missing"
        agent.tools, tools = tools, []
        await invocation.result()
        await verify_tree(invocation, QUICK_SETTINGS.workflow)
        assert kinds(await invocation.history())["marker"] == 1


async def test_calls_of_one_reply_may_end_in_different_ways(serve: Serve) -> None:
    """Each call runs where it can, and the results have the order of the calls."""

    async def retry(place: str) -> str:
        """Look, and fail at first."""
        if activity.info().is_local:
            raise OSError("not now")
        return place

    async def long(place: str) -> str:
        """Look at a lot."""
        return place * 40_000

    def refuse(place: str) -> str:
        """Look at nothing."""
        raise ValueError("closed")

    def ordinary(place: str) -> str:
        """Look."""
        return place

    tools = [quick(retry, retries=1), quick(long), quick(refuse), ordinary, quick(look)]
    names = ["retry", "long", "refuse", "ordinary", "look"]
    model = ScriptedModel(calls(*((name, {"place": "p"}) for name in names)), says("Seen."))
    async with serve(Agent(name="looker", model=model, tools=tools), **CACHED, settings=PATIENT_SETTINGS) as env:
        invocation = await start_and_finish(env.client.start("looker", "look"))
        history = await invocation.history()
    results = tool_responses(model.requests[1])
    assert [results[0], results[3], results[4]] == [{"result": "p"}, {"result": "p"}, {"place": "p"}]
    assert results[1] == {"result": "p" * 40_000}
    assert results[2]["error_type"] == "ValueError"
    ordinary_calls = {"looker.retry": 1, "looker.long": 1, "looker.ordinary": 1}
    assert kinds(history) == {"call_model": 2, "marker": 4, **ordinary_calls}


async def test_a_quick_tool_may_ask_for_confirmation(serve: Serve) -> None:
    """The request is recorded like that of any tool; the confirmed call runs as an ordinary activity."""

    def look(place: str, tool_context: ToolContext) -> str:
        """Look, if allowed."""
        if not tool_context.tool_confirmation:
            tool_context.request_confirmation(hint="Really?")
            return "asked"
        return place

    agent, model = looker(quick(look))
    async with serve(agent, **CACHED, settings=PATIENT_SETTINGS) as env:
        invocation, pending = await start_and_get_call(env.client.start("looker", "look"), "fc-1")
        await approve_and_finish(invocation, pending.function_call_id)
        history = await invocation.history()
    assert tool_responses(model.requests[-1])[-1] == {"result": "p0"}
    assert kinds(history)["looker.look"] == 1


async def test_a_call_that_needs_approval_is_an_ordinary_activity(serve: Serve) -> None:
    """An approval can arrive by an update that the history does not contain yet."""
    agent, _ = looker(quick(look, require_confirmation=True))
    async with serve(agent, **CACHED, settings=PATIENT_SETTINGS) as env:
        invocation = await start_and_wait(env.client.start("looker", "look"), "fc-1")
        await approve_and_finish(invocation, "fc-1")
        assert kinds(await invocation.history()) == {"call_model": 2, "marker": 0, "looker.look": 1}


async def test_a_quick_call_can_end_the_invocation(serve: Serve) -> None:
    """The end is recorded in the same workflow task, at the time at which the call returned."""

    def look(place: str, tool_context: ToolContext) -> str:
        """Look."""
        tool_context.actions.skip_summarization = True
        return place

    agent, _ = looker(quick(look), times=2)
    async with serve(agent, **CACHED, settings=PATIENT_SETTINGS) as env:
        invocation = await start_and_finish(env.client.start("looker", "look"))
        assert kinds(await invocation.history()) == {"call_model": 1, "marker": 2}


async def test_branches_run_quick_calls_at_the_same_time(serve: Serve) -> None:
    """The log has the results in the order in which the calls were scheduled, whichever returned first."""
    agents: list[BaseAgent] = [
        Agent(name=name, model=ScriptedModel(calls(("look", {"place": name})), says(name)), tools=[quick(look)])
        for name in ("left", "right")
    ]
    async with serve(ParallelAgent(name="both", sub_agents=agents), **CACHED, settings=PATIENT_SETTINGS) as env:
        invocation = await start_and_finish(env.client.start("both", "look"))
        assert kinds(await invocation.history())["marker"] == 2


async def test_a_worker_that_runs_only_workflows_replays_quick_calls(serve: Serve) -> None:
    """A fleet can be split into workers for workflows and workers for activities while invocations are open."""
    model = ScriptedModel(
        calls(("look", {"place": "p0"})), calls(("pay", {})), calls(("look", {"place": "p1"})), says("Done.")
    )

    def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(name="looker", model=model, tools=[quick(look), FunctionTool(pay, require_confirmation=True)])
    async with serve(agent, **CACHED, settings=PATIENT_SETTINGS, verify=False) as env:
        invocation = await start_and_wait(env.client.start("looker", "look"), "fc-2")
        queue = env.client.task_queue
    parts = {"task_queue": queue, "verify": False}
    async with serve(agent, workflows=False, **parts) as env, serve(agent, activities=False, **parts):
        invocation = env.client.invocation(invocation.id)
        await approve_and_finish(invocation, "fc-2")
        await verify_tree(invocation)
        assert kinds(await invocation.history()) == {"call_model": 4, "marker": 1, "looker.pay": 1, "looker.look": 1}


async def test_a_quick_call_may_outlast_its_workflow_task(serve: Serve) -> None:
    """A client chose a short timeout for workflow tasks; the call continues in the next one, whose marker has it."""
    may_end = asyncio.Event()

    async def look(place: str) -> str:
        """Look."""
        if place == "p1":
            await may_end.wait()
        return place

    agent, model = looker(quick(look), times=2)
    patient = limit_quick_calls(20)
    async with serve(agent, **CACHED, settings=patient, verify=False) as env:
        handle = await env.temporal.start_workflow(
            WORKFLOW,
            {"agent": "looker", "message": "look"},
            id=f"looker-{uuid.uuid4()}",
            task_queue=env.client.task_queue,
            task_timeout=timedelta(seconds=1),
        )
        invocation = env.client.invocation(handle.id)

        async def outlasted() -> bool:
            return kinds(await invocation.history())["marker"] == 1

        await wait_until(outlasted, "a marker of the other call")
        may_end.set()
        await invocation.result()
        await verify_tree(invocation, patient.workflow)
    assert tool_responses(model.requests[1]) == [{"result": "p0"}, {"result": "p1"}]
