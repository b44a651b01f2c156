"""A workflow waits only briefly for a worker that was killed during one of its workflow tasks."""

from datetime import timedelta
from typing import Any

from temporalio.client import ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec

from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.contract import TASK_TIMEOUT, WORKFLOW
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools import AgentTool, FunctionTool


def add(number: int) -> int:
    """Add."""
    return number


def clerk() -> Agent:
    """Return an agent that calls another one."""
    helper = Agent(name="helper", model=ScriptedModel(says("done")))
    model = ScriptedModel(calls(("helper", {"request": "help"})), says("done"))
    return Agent(name="clerk", model=model, tools=[AgentTool(helper)])


async def task_timeouts(env: AgentEnvironment, id: str) -> list[timedelta]:
    """Return the workflow task timeout of each run of a workflow."""
    runs = await Invocation.from_id(env.client, id).histories()
    started: list[Any] = [run.events[0].workflow_execution_started_event_attributes for run in runs]
    return [attributes.workflow_task_timeout.ToTimedelta() for attributes in started]


async def test_an_invocation_and_the_agents_that_it_calls_have_the_short_timeout(serve: Serve) -> None:
    """The server's default is 10 s."""
    async with serve(clerk()) as env:
        invocation = await env.client.start("clerk", "go")
        await invocation.result()
        for id in (invocation.id, f"{invocation.id}/fc-1"):
            assert await task_timeouts(env, id) == [TASK_TIMEOUT]


async def test_a_session_and_its_invocations_have_the_short_timeout(serve: Serve) -> None:
    """The client starts the session; the session starts the invocations."""
    async with serve(Agent(name="clerk", model=ScriptedModel(says("hello")))) as env:
        session = env.client.session(agent="clerk", session_id=env.client.task_queue)
        await session.say("hi")
        for id in (session.id, f"{session.id}/1"):
            assert await task_timeouts(env, id) == [TASK_TIMEOUT]


async def test_a_scheduled_invocation_has_the_short_timeout(serve: Serve) -> None:
    """The action of the schedule contains the timeout."""
    async with serve(clerk()) as env:
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=1))])
        schedule = await env.client.schedule("clerk", "look", spec, id=env.client.task_queue)
        action = (await schedule.describe()).schedule.action
        await schedule.delete()
    assert isinstance(action, ScheduleActionStartWorkflow)
    assert action.task_timeout == TASK_TIMEOUT


async def test_later_runs_keep_the_timeout_that_the_starter_set(serve: Serve) -> None:
    """Continue-as-new does not fall back to the server's default."""
    own = timedelta(seconds=7)
    steps = [calls(("add", {"number": number})) for number in range(6)]
    agent = Agent(name="adder", model=ScriptedModel(*steps, says("done")), tools=[FunctionTool(add)])
    async with serve(agent) as env:
        handle = await env.temporal.start_workflow(
            WORKFLOW,
            {"agent": "adder", "message": "go", "cut_after": 20},
            id=f"adder-{env.client.task_queue}",
            task_queue=env.client.task_queue,
            task_timeout=own,
        )
        await handle.result()
        timeouts = await task_timeouts(env, handle.id)
    assert len(timeouts) > 1
    assert set(timeouts) == {own}
