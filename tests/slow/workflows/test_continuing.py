"""Long invocations that continue as new several times."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.test_continuing import add, ask, counting, in_run, runs, start_with_cuts
from tests.steps import reset_run, wait_for_calls
from waystation.agents import Agent, ParallelAgent
from waystation.core.errors import AlreadyAnswered
from waystation.core.log import AnswerCounted
from waystation.testing import FunctionModel, ScriptedModel, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool


async def test_a_call_is_pending_over_three_runs_and_answered_once(serve: Serve) -> None:
    """A pending call keeps its deadline and its digest; a late answer is refused as already answered."""
    asker = Agent(
        name="asker",
        model=ScriptedModel(calls(("ask", {"what": "?"})), says("waiting"), says("answered")),
        tools=[LongRunningFunctionTool(ask)],
    )
    adder = Agent(name="adder", model=counting(9), tools=[add])
    async with serve(ParallelAgent(name="both", sub_agents=[asker, adder])) as env:
        invocation = await start_with_cuts(env, "both")
        await in_run(invocation, 2)
        (first,) = await wait_for_calls(invocation, "fc-1-1")
        await in_run(invocation, 4)
        assert await invocation.pending() == [first]
        receipt = await invocation.approve(digest=first.digest, by="dana")
        assert receipt["accepted"]
        with pytest.raises(AlreadyAnswered, match="'dana': approve"):
            await invocation.reject(first.function_call_id)
        assert (await invocation.result()).status == "completed"
        log = await invocation.log()
        assert sum(isinstance(entry.body, AnswerCounted) for entry in log.entries) == 1


async def test_no_answer_is_lost_around_continue_as_new(serve: Serve) -> None:
    """Signals and updates arrive at any moment: each is applied once, whichever run processes it."""
    asker = Agent(
        name="asker",
        model=FunctionModel(lambda request: says("heard") if responses(request) else calls(("ask", {"what": "?"}))),
        tools=[LongRunningFunctionTool(ask)],
    )
    adder = Agent(name="adder", model=counting(10), tools=[add])
    async with serve(ParallelAgent(name="blast", sub_agents=[asker, adder])) as env:
        invocation = await start_with_cuts(env, "blast")
        (call,) = await wait_for_calls(invocation, "fc-1-1")
        for number in range(40):
            note: dict[str, Any] = {"response": {"n": number}, "wake": False, "answer_id": f"a{number}"}
            await invocation.answer("progress", call.function_call_id, signal=number % 2 == 0, **note)
        await in_run(invocation, 2)
        await invocation.approve(call.function_call_id)
        assert (await invocation.result()).status == "completed"
        counted = [e.body.answer for e in (await invocation.log()).entries if isinstance(e.body, AnswerCounted)]
        told = sorted(answer.response["n"] for answer in counted if answer.action == "progress" and answer.response)
        assert told == list(range(40))


async def test_a_reset_run_continues_in_further_runs_and_replays(serve: Serve) -> None:
    """A reset run passes its new run ID to the next run, and a replay uses the earlier one."""
    async with serve(Agent(name="adder", model=counting(4), tools=[add])) as env:
        invocation = await start_with_cuts(env, "adder")
        await invocation.result()
        await reset_run(env.temporal, (await invocation.histories())[0], 2)
        again = env.client.invocation(invocation.id)
        assert (await again.result()).text == "told 4 times: 10"
        assert await runs(again) > 1
