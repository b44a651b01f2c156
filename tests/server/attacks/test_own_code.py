"""Approvals of calls for which the workflow runs an activity of the user."""

from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import Worker

from tests.server.attacks.attackers import ANN, ARGS, Attacker, pays
from tests.server.attacks.test_answers_under_attack import at_rest
from tests.server.attacks.test_spent_approvals import SOLO, approve
from tests.server.conftest import Serve
from tests.steps import reset_run, start_and_wait
from tests.unit.identity.conftest import Installation
from waystation import ActivityTool, Agent, NotAllowed

SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}}
paid: list[Any] = []


@activity.defn
async def pay(params: dict[str, Any]) -> str:
    """Pay."""
    paid.append(params)
    return "paid"


async def test_a_verified_approval_lets_an_activity_of_the_user_run_once(
    serve: Serve, there: Installation, attacker: Attacker
) -> None:
    """An answer without a token does not count, and after a reset the approval does not count again."""
    paid.clear()
    tool = ActivityTool("pay", schema=SCHEMA, approval=SOLO)
    agent = Agent(name="payer", model=pays(), tools=[tool])
    async with serve(agent, identity=there.worker, verify=False) as env:
        tool.task_queue = f"{env.client.task_queue}-users"
        async with Worker(env.temporal, task_queue=tool.task_queue, activities=[pay]):
            invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
            with pytest.raises(NotAllowed):
                await invocation.approve("fc-1", by=ANN)
            assert paid == []
            await approve(env, there, invocation)
            await invocation.result()
            assert paid == [ARGS]
            await reset_run(attacker.temporal, await invocation.history(), 3)
            await at_rest(env.client.invocation(invocation.id))
    assert paid == [ARGS]
