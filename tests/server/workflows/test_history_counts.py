"""The cost of an invocation in counts that no machine changes: workflow tasks, activities and payloads.

The benchmarks measure the same agent. Times are never asserted.
"""

import asyncio

import pytest

from benchmarks.agents.bench.agent import root_agent
from benchmarks.comparison import count_events
from benchmarks.side import APPROVE, FIVE, ONE, QUICK, Scenario
from tests.server.conftest import Serve
from tests.steps import PATIENT_SETTINGS


@pytest.mark.parametrize(
    ("scenario", "workflow_tasks", "activities", "payloads"),
    [
        pytest.param(ONE, 4, 3, 12, id="one tool call"),
        # On a slow machine, each of the five results may need a workflow task of its own. Four of these are filled,
        # with one payload each, and one more for the first.
        pytest.param(FIVE, 8, 7, 29, id="five parallel tool calls"),
        pytest.param(QUICK, 3, 2, 12, id="one quick tool call"),
        pytest.param(APPROVE, 5, 3, 20, id="an approval"),
    ],
)
async def test_an_invocation_needs_no_more_tasks_and_payloads(
    serve: Serve, scenario: Scenario, workflow_tasks: int, activities: int, payloads: int
) -> None:
    """Tasks and payloads stay below their limits, because each costs CPU time on worker and server."""
    async with serve(root_agent, verify=False, max_cached_workflows=10, settings=PATIENT_SETTINGS) as env:
        invocation = await env.client.start(root_agent.name, scenario.text())
        if scenario is APPROVE:
            while not await invocation.pending():
                await asyncio.sleep(0.01)
            await invocation.approve("fc-1")
        await invocation.result()
        counts = count_events(await invocation.history())
    assert counts["workflow tasks"] <= workflow_tasks
    assert counts["activities"] <= activities
    assert counts["payloads"] <= payloads
