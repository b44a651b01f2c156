"""Signs of life: as long as a worker lives, its tools do not count as lost, whatever they are doing."""

import itertools
import time
from datetime import timedelta

from tests.conftest import Serve
from tools import FunctionTool
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, responses, says

SHORT = timedelta(seconds=1)


async def test_a_tool_may_take_longer_than_its_heartbeat_timeout(serve: Serve) -> None:
    """The engine sends heartbeats for a tool that sends none."""

    def compute() -> str:
        """Take a while."""
        time.sleep(2 * SHORT.total_seconds())
        return "computed"

    model = ScriptedModel(calls(("compute", {})), says("done"))
    tool = FunctionTool(compute, heartbeat_timeout=SHORT, effect="once")
    async with serve(Agent(name="patient", model=model, tools=[tool])) as env:
        await env.client.run("patient", "go")
    assert responses(model.requests[-1]) == [("compute", {"result": "computed"})]


async def test_a_tool_that_waits_for_its_next_try_is_alive(serve: Serve) -> None:
    """The pause before a retry of a call that takes effect once may be longer than the heartbeat timeout."""
    tries = itertools.count(1)

    def flaky() -> str:
        """Fail twice."""
        number = next(tries)
        if number < 3:
            raise ConnectionError("not yet")
        return f"try {number}"

    model = ScriptedModel(calls(("flaky", {})), says("done"))
    tool = FunctionTool(flaky, heartbeat_timeout=SHORT, effect="once", retries=2)
    async with serve(Agent(name="patient", model=model, tools=[tool])) as env:
        await env.client.run("patient", "go")
    assert responses(model.requests[-1]) == [("flaky", {"result": "try 3"})]
