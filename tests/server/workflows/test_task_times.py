"""No decision depends on when a workflow task ran: a replay with other task boundaries decides the same."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from temporalio import bridge
from temporalio.worker import Worker

from tests.server.conftest import Serve
from tests.server.processes.agents.scheduled.agent import root_agent
from tests.server.workflows.schedules import POLICIES, assert_same_on_replay, follow_schedule
from tests.steps import LIMIT_S, wait_until
from tests.tiers import drawn_examples
from waystation.client.agent_client import Invocation
from waystation.core.budget import Budget


@pytest.mark.slow
async def test_an_answer_after_results_does_not_lengthen_the_work(serve: Serve) -> None:
    """Two tools return while a call waits, and another invocation occupies the cache for 3 s.

    This time does not count toward the working time of 2 s, whatever happens when it is used up.
    """
    batch = [("ask", {}), ("rest", {"seconds": 0.01}), ("rest", {"seconds": 0.1})]
    plan, other = json.dumps([batch, [("rest", {"seconds": 0})]]), json.dumps([[("rest", {"seconds": 3})]])

    async def returned(invocation: Invocation) -> bool:
        calls = (await invocation.log()).state.calls
        return len(calls) == 3 and all(call.outcome for call in calls.values())

    async with serve(root_agent, max_cached_workflows=1, verify=False) as env:
        budgets = [Budget(max_wall_s=2, on_exhausted=policy) if policy else Budget() for policy in POLICIES]
        invocations = [await env.client.start("scheduled", plan, budget=budget) for budget in budgets]
        for invocation in invocations:
            await wait_until(partial(returned, invocation), "the results")
        await env.client.run("scheduled", other)
        for invocation in invocations:
            await invocation.answer("respond", "fc-1", response={"go": True}, by="ann")
            async with asyncio.timeout(LIMIT_S):
                result = await invocation.result()
            assert (result.reason, result.spent and result.spent.tool_calls) == (None, 4)
            await assert_same_on_replay(invocation)


@pytest.mark.slow
async def test_random_schedules_are_the_same_on_replay(serve: Serve) -> None:
    """A cache for two workflows evicts them repeatedly, and the worker is replaced."""
    async with serve(root_agent, max_cached_workflows=2, verify=False) as env:
        schedules = [asyncio.create_task(follow_schedule(env.client, seed)) for seed in range(drawn_examples(32))]
        await env.worker.shutdown()
        async with Worker(**env.worker.config()):
            for invocation in await asyncio.gather(*schedules):
                await assert_same_on_replay(invocation)


def test_the_sdk_divides_histories_into_tasks_by_the_known_rule() -> None:
    """A release of the SDK with the newer rule names this flag. `HistoryReader._complete_task` must then follow it."""
    [core] = Path(bridge.__path__[0]).glob("temporal_sdk_bridge*")
    assert b"TEMPORAL_USE_WFT_CHUNKING_V2" not in core.read_bytes()
