"""`waystation rerun`: its questions, its refusals and its output, on a server."""

from pathlib import Path

import pytest

from tests.corpus.test_rerun_command import agents
from tests.programs import command
from tests.server.cli.conftest import Command, waystation
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.testing import FunctionModel, ScriptedModel, calls, says, user_text
from waystation.tools.agent_tool import AgentTool

__all__ = ["agents", "waystation"]


async def test_a_step_of_a_called_agent_is_rerun(
    serve: Serve, waystation: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A called agent's events are addressed in the file of its caller."""
    package = tmp_path / "agents" / f"boss_{tmp_path.name}"
    package.mkdir(parents=True)
    (package / "agent.py").write_text(
        "from waystation import Agent\nfrom waystation.testing import FunctionModel\nfrom tools import AgentTool\n"
        "clerk = Agent(name='clerk', model=FunctionModel(lambda _: 'It is 5.'))\n"
        "root_agent = Agent(name='boss', model=FunctionModel(lambda _: 'five'), tools=[AgentTool(clerk)])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(package.parent)
    clerk = Agent(name="clerk", model=ScriptedModel(says("It is 4.")))
    caller = ScriptedModel(calls(("clerk", {"request": "count"})), says("four"))
    async with serve(Agent(name="boss", model=caller, tools=[AgentTool(clerk)])) as env:
        invocation = await env.client.start("boss", "go")
        await invocation.result()
        kept = tmp_path / "kept.json"
        kept.write_text((await waystation(env, "history", invocation.id)).out)
    command_line = ("rerun", str(kept), "2", "--agents", str(package.parent), "--json")
    (record,) = (await command(*command_line, "--called", "fc-1")).records
    assert (record["recorded"]["text"], record["now"]["text"]) == ("It is 4.", "It is 5.")
    assert "Calls that called an agent: fc-1" in (await command(*command_line, "--called", "fc-9")).err


async def test_a_model_call_of_a_session_has_its_earlier_messages(
    serve: Serve, waystation: Command, agents: str
) -> None:
    """The command reads earlier invocations from the server, and changes none."""
    agent = Agent(name="clerk", model=FunctionModel(lambda request: f"You said {user_text(request)}."))
    async with serve(agent) as env:
        session = env.client.session(agent="clerk", session_id="s-rerun")
        await (await session.send("My name is Ada.")).result()
        second = await session.send("What is it?")
        await second.result()
        before = len((await second.histories())[0].events)
        ran = await waystation(env, "rerun", second.id, "2", "--agents", agents, "--json")
        assert "My name is Ada." in ran.records[0]["now"]["text"]
        assert len((await second.histories())[0].events) == before
