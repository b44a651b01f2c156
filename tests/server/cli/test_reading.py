"""`waystation events` and `state`."""

import asyncio

import pytest

from tests.server.cli.conftest import Command
from tests.server.cli.test_run import add, asking, waits
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says


async def test_events_and_state_equal_those_of_the_history(serve: Serve, waystation: Command) -> None:
    """JSON contains the events that clients get; the text shows the same events."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), says("three"))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        invocation = await env.client.start("adder", "one and two?", state={"seed": 1})
        await invocation.result()
        log = await invocation.log()
        recorded = await waystation(env, "events", invocation.id, "--json")
        assert recorded.records == [event.to_json() for event in log.state.events]
        assert "adder: three" in (await waystation(env, "events", invocation.id)).out
        assert (await waystation(env, "state", invocation.id, "--json")).records == [{"seed": 1, "sum": 3}]
        assert (await waystation(env, "state", invocation.id)).out == '{\n  "seed": 1,\n  "sum": 3\n}\n'


async def test_events_of_a_waiting_invocation_end_with_its_pending_calls(serve: Serve, waystation: Command) -> None:
    """The reader of the events sees the command that answers the call."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        await waits(invocation)
        assert f"approve {invocation.id} fc-1" in (await waystation(env, "events", invocation.id)).out
        await invocation.approve()
        await invocation.result()
        assert "waiting for a person" not in (await waystation(env, "events", invocation.id)).out


@pytest.mark.slow
async def test_events_are_followed_to_the_end(serve: Serve, waystation: Command) -> None:
    """With --follow the command ends when the invocation ends."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        following = asyncio.create_task(waystation(env, "events", invocation.id, "--follow", "--json"))
        await waits(invocation)
        assert not following.done()
        await invocation.approve()
        ran = await following
        assert ran.records[-1]["content"]["parts"][0]["text"] == "They said approved."


@pytest.mark.slow
async def test_an_unknown_invocation_exits_with_6(serve: Serve, waystation: Command) -> None:
    """One line on stderr has the id and the server, and stdout is empty."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env:
        for command in ("events", "state", "replay", "pending", "approve"):
            ran = await waystation(env, command, "no-such")
            assert (ran.code, ran.out, ran.err.count("\n")) == (6, "", 1), command
            assert "'no-such'" in ran.err
            assert env.server.address in ran.err


async def test_another_workflow_is_not_mistaken_for_an_invocation(serve: Serve, waystation: Command) -> None:
    """The message names the type of the workflow."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env:
        handle = await env.temporal.start_workflow("Other", id=f"other-{env.client.task_queue}", task_queue="deserted")
        ran = await waystation(env, "events", handle.id)
        assert (ran.code, "of type 'Other'" in ran.err) == (6, True)
        await handle.terminate()
