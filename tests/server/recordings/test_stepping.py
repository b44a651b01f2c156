"""The step debugger has a cursor in a recording and a terminal, on a server."""

from tests.server.conftest import Serve
from tests.steps import start_and_finish
from waystation.agents import Agent
from waystation.core.errors import ModelOverloaded
from waystation.replay import Cursor, Recording
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool


async def test_a_cursor_enters_called_agents_and_returns(serve: Serve) -> None:
    """Leaving a called agent returns to the position of the call."""
    counter = Agent(name="counter", model=ScriptedModel(says("It is 4.")))
    agent = Agent(
        name="clerk",
        model=ScriptedModel(calls(("counter", {"request": "count"})), says("four")),
        tools=[AgentTool(counter)],
    )
    async with serve(agent) as env:
        invocation = await start_and_finish(env.client.start("clerk", "go"))
        here = Cursor(await Recording.of(invocation))
    assert (here.out(), here.into()) == (False, False)
    here.go(2)
    assert {"m1", "fc-1", "m2"} <= set(here.attempts)
    assert (here.calls(), here.into(), here.recording.id) == (["fc-1"], True, f"{invocation.id}/fc-1")
    assert set(here.attempts) == {"m1"}
    assert (here.next(), here.search("it is 4"), here.out(), here.moment.number) == (True, True, True, 2)
    assert here.into("fc-9") is False


async def test_attempts_and_durations_come_from_the_history(serve: Serve) -> None:
    """Attempts have their count, their times and the failure of the attempt before."""
    model = ScriptedModel(ModelOverloaded("busy", retry_after_s=0.01), says("yes"))
    async with serve(Agent(name="clerk", model=model)) as env:
        invocation = await start_and_finish(env.client.start("clerk", "go"))
        here = Cursor(await Recording.of(invocation))
    effort = here.attempts["m1"]
    assert effort.count == 2
    assert effort.failure_before
    assert effort.failure_before.error_type == "ModelUnavailable"
    assert effort.started
    assert effort.ended
    assert effort.scheduled <= effort.started <= effort.ended
    assert effort.lasted_s == effort.ended - effort.scheduled
    here.go(2)
    assert "attempt 2" in here._repr_html_()
