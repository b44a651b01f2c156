"""`waystation replay` of invocations and files, on a server."""

from pathlib import Path

import pytest

from tests.server.cli.conftest import Command
from tests.server.cli.test_run import add
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says


async def test_an_invocation_replays_with_its_state_at_each_event(serve: Serve, waystation: Command) -> None:
    """The table shows when the state changed; the JSON output has each event with its state."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), says("three"))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        invocation = await env.client.start("adder", "?", state={"seed": 1})
        await invocation.result()
        recorded = (await waystation(env, "replay", invocation.id, "--json")).records[0]
        assert (recorded["replays"], recorded["problem"], recorded["invocation_id"]) == (True, None, invocation.id)
        assert [step["state"] for step in recorded["steps"]] == [{"seed": 1}, {"seed": 1}, *[{"seed": 1, "sum": 3}] * 2]
        replayed = await waystation(env, "replay", invocation.id)
        assert replayed.out.startswith(f"replays  {invocation.id}, 23 history events\n")
        assert '{"seed": 1, "sum": 3}' in replayed.out


async def test_a_folder_without_a_path_is_an_invocation_first(
    serve: Serve, waystation: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no invocation `trip`, the message says that `trip` is a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trip").mkdir()
    async with serve(Agent(name="adder", model=ScriptedModel(says("three")))) as env:
        lost = await waystation(env, "events", "trip")
        assert (
            lost.code,
            "'trip' is a folder, not an invocation. Name a history file in this folder." in lost.err,
        ) == (6, True)
        assert "'trip' is a folder" in (await waystation(env, "replay", "trip")).err
        await (await env.client.start("adder", "?", id="trip")).result()
        assert "three" in (await waystation(env, "events", "trip")).out
