"""Invocations and sessions with several runs are saved, replayed and shown as one."""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from tests.programs import command, without_time
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.server.sessions.conftest import new_session
from tests.server.sessions.test_client import asking
from tests.server.workflows.test_continuing import add, counting, start_with_cuts
from waystation import stream_file
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the store of the workers and of the commands."""
    monkeypatch.setenv("WAYSTATION_STORE", str(tmp_path / "store"))


async def run_with_several_runs(env: AgentEnvironment) -> Invocation:
    """Run an invocation through three runs or more."""
    invocation = await start_with_cuts(env, "adder", state={"base": 1}, cut_after=12)
    await invocation.result()
    return invocation


async def test_the_history_of_one_run_has_the_format_of_temporal(serve: Serve, waystation: Command) -> None:
    """The output matches Temporal's own format, so that Temporal's programs can read it."""
    model = ScriptedModel(calls(("add", {"number": 1})), says("one"))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        invocation = await env.client.start("adder", "go")
        await invocation.result()
        kept = json.loads((await waystation(env, "history", invocation.id)).out)
        assert kept == (await invocation.history()).to_json_dict()


@pytest.mark.slow
async def test_all_runs_are_saved_to_one_file_and_read_from_it(
    serve: Serve, waystation: Command, tmp_path: Path
) -> None:
    """Commands and streams see one invocation; a program that expects one run reads the last one."""
    async with serve(Agent(name="adder", model=counting(4), tools=[add])) as env:
        invocation = await run_with_several_runs(env)
        log, runs = await invocation.log(), await invocation.histories()
        path = tmp_path / "kept.json"
        path.write_text((await waystation(env, "history", invocation.id)).out)
    ran = await command("--address", "127.0.0.1:1", "replay", str(path), "--json")
    (record,) = ran.records
    assert (ran.code, record["replays"], record["runs"]) == (0, True, len(runs))
    assert record["history_events"] == sum(len(run.events) for run in runs)
    assert [step["event"] for step in record["steps"]] == [event.to_json() for event in log.state.events]
    assert [step["state"].get("sum") for step in record["steps"]][-1] == 10
    assert [event async for event in stream_file(path)] == log.state.events
    assert WorkflowHistory.from_json(invocation.id, path.read_text()).events == runs[-1].events


@pytest.mark.slow
async def test_an_invocation_replays_with_all_of_its_runs(serve: Serve, waystation: Command) -> None:
    """The table begins with the first event of the first run."""
    async with serve(Agent(name="adder", model=counting(4), tools=[add])) as env:
        invocation = await run_with_several_runs(env)
        replayed = await waystation(env, "replay", invocation.id)
        events = sum(len(run.events) for run in await invocation.histories())
        runs = len(await invocation.histories())
        assert replayed.out.startswith(f"replays  {invocation.id}, {events} history events in {runs} runs\n")
        assert "user: go" in replayed.out
        assert '{"base": 1, "sum": 10}' in replayed.out


@pytest.mark.slow
async def test_a_file_with_inconsistent_runs_is_refused(serve: Serve, waystation: Command, tmp_path: Path) -> None:
    """The message names the run that differs, is missing or is damaged."""
    async with serve(Agent(name="adder", model=counting(4), tools=[add])) as env:
        kept = json.loads((await waystation(env, "history", (await run_with_several_runs(env)).id)).out)
    path = tmp_path / "kept.json"
    earlier = kept["earlierRuns"]
    path.write_text(json.dumps({**kept, "earlierRuns": earlier[:-1]}))
    lacking = await command("replay", str(path))
    assert (lacking.code, "continues from entry" in lacking.err, "kept.json" in lacking.err) == (2, True, True)
    path.write_text(json.dumps({**kept, "earlierRuns": [{"events": earlier[0]["events"][:-3]}, *earlier[1:]]}))
    assert (await command("replay", str(path))).code == 2
    path.write_text(json.dumps({**kept, "earlierRuns": [*earlier[:-1], {"events": earlier[-1]["events"][2:]}]}))
    damaged = await command("replay", str(path))
    assert (damaged.code, f"run {len(earlier)}, is not a history" in damaged.err) == (2, True)
    path.write_text(json.dumps(kept).replace('"adder.add"', '"adder.subtract"'))
    differs = await command("replay", str(path), "--json")
    assert differs.code == 1
    assert differs.records[0]["problem"].startswith(f"Run 1 of {len(earlier) + 1}: ")


@pytest.mark.slow
async def test_a_session_of_several_runs_is_shown_whole(serve: Serve, waystation: Command) -> None:
    """The session is shown from its first message on, and all of its runs replay."""
    async with serve(asking(), verify=False) as env:
        session = new_session(env, "asker", cut_after=2)
        texts = [f"number {n}" for n in range(3)]
        for text in texts:
            await session.say(text)
        ran = await waystation(env, "session", "show", session.given.session_id, "--user", "ann")
        user_lines = [line for line in map(without_time, ran.out.splitlines()) if line.startswith("user: ")]
        assert user_lines == [f"user: {text}" for text in texts]
        runs = len(await env.client.invocation(session.id).histories())
        assert runs > 1
        replayed = (await waystation(env, "replay", session.id)).out
        assert replayed.startswith(f"replays  {session.id}, ")
        assert replayed.endswith(f" history events in {runs} runs\n")
