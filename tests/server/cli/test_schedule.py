"""`waystation schedule`: start an invocation at regular times."""

import asyncio
import json

import pytest

from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.testing import ScriptedModel, says


async def test_a_schedule_starts_invocations(serve: Serve, waystation: Command) -> None:
    """A schedule of Temporal starts ordinary invocations for its user."""
    agent = Agent(name="reporter", model=ScriptedModel(says("all quiet")))
    async with serve(agent) as env:
        made = await waystation(
            env, *("schedule", "reporter", "report", "--every", "3600", "--id", "hourly", "--user", "dana", "--json")
        )
        assert json.loads(made.out) == {"schedule_id": "hourly"}
        handle = env.temporal.get_schedule_handle("hourly")
        try:
            await handle.trigger()
            while not (actions := (await handle.describe()).info.recent_actions):
                await asyncio.sleep(0.02)
            invocation = env.client.invocation(actions[0].action.workflow_id)  # type: ignore[attr-defined]
            assert (await invocation.result()).text == "all quiet"
            assert (await invocation.log()).state.input.user_id == "dana"  # type: ignore[union-attr]
            twice = await waystation(env, "schedule", "reporter", "report", "--every", "3600", "--id", "hourly")
        finally:
            await handle.delete()
    assert twice.code == 2
    assert "exists" in twice.err


@pytest.mark.parametrize("times", [(), ("--cron", "* * * * *", "--every", "5"), ("--every", "0"), ("--cron", "never")])
async def test_times_are_required_and_validated(serve: Serve, waystation: Command, times: tuple[str, ...]) -> None:
    """No schedule is created without a valid time."""
    async with serve(Agent(name="reporter", model=ScriptedModel())) as env:
        assert (await waystation(env, "schedule", "reporter", "report", *times)).code == 2
