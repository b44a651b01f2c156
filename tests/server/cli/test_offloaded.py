"""Commands that show invocations with large values in a store."""

import json
from pathlib import Path

import pytest

from tests.agents import Till
from tests.programs import command
from tests.server.cli.conftest import Command
from tests.server.cli.shell import Shell
from tests.server.conftest import Serve
from tests.server.sessions.conftest import new_session, settled_events
from tests.server.streams.test_web import stream_of
from tests.server.web.desk import begun, payer
from tests.server.web.sites import page_of, path_of, site
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.client import connect
from waystation.client.agent_client import AgentClient, Invocation
from waystation.storage import Blobs
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.tool_context import ToolContext

LARGE = 3_000_000
SHORT = "[offloaded: 3.0 MB, sha256 "


def read(tool_context: ToolContext) -> str:
    """Read something large."""
    tool_context.state["title"] = "y" * 300_000
    return "x" * LARGE


def reader() -> Agent:
    """Return an agent whose tool returns 3 MB."""
    return Agent(name="reader", model=ScriptedModel(calls(("read", {})), says("Read.")), tools=[read])


async def run_to_end(env: AgentEnvironment) -> Invocation:
    """Run the agent."""
    invocation = await env.client.start("reader", "read")
    assert (await invocation.result()).text == "Read."
    return invocation


async def client_with_another_store(env: AgentEnvironment, store: Path) -> AgentClient:
    """Return a client that shows histories, like `waystation web`, but with another store than the workers."""
    temporal = await connect(address=env.server.address, store=store, short_forms=True)
    return AgentClient(temporal, task_queue=env.client.task_queue, blobs=Blobs(store))


@pytest.mark.slow
async def test_without_the_store_events_show_short_forms(serve: Serve, waystation: Command, tmp_path: Path) -> None:
    """All events are shown, also as JSON; stderr reports the short forms and the remedy."""
    async with serve(reader()) as env:
        invocation = await run_to_end(env)
        for options in ((), ("--json",), ("--follow",)):
            ran = await waystation(env, "events", invocation.id, "--store", str(tmp_path), *options)
            assert (ran.code, SHORT in ran.out, len(ran.out) < 15_000) == (0, True, True)
            assert ran.err.startswith("2 large values are shown in short form. Name the workers' store with --store. ")
        assert "reader: Read." in (await waystation(env, "events", invocation.id, "--store", str(tmp_path))).out
        state = await waystation(env, "state", invocation.id, "--store", str(tmp_path), "--json")
        assert state.records[0]["title"].startswith("[offloaded: 300.0 kB, sha256 ")


async def test_with_the_store_people_see_the_beginning_and_programs_everything(
    serve: Serve, waystation: Command, payload_store: Path
) -> None:
    """The store option works before and after the command."""
    async with serve(reader()) as env:
        invocation = await run_to_end(env)
        ran = await waystation(env, "--store", str(payload_store), "events", invocation.id)
        assert ("reader: Read." in ran.out, len(ran.out) < 2_000, "offloaded" in ran.out, ran.err) == (
            *(True, True, False),
            "",
        )
        whole = await waystation(env, "events", invocation.id, f"--store={payload_store}", "--json")
        [response] = [
            part for event in whole.records for part in event["content"]["parts"] if "functionResponse" in part
        ]
        assert len(response["functionResponse"]["response"]["result"]) == LARGE
        state = await waystation(env, "state", invocation.id, "--store", str(payload_store))
        assert "y… (300,000 characters)" in state.out


async def test_a_history_is_replayed_only_with_all_of_its_values(
    serve: Serve, waystation: Command, payload_store: Path, tmp_path: Path
) -> None:
    """Without the store, states have their short form, and neither the history nor a file is replayed."""
    async with serve(reader()) as env:
        invocation = await run_to_end(env)
        file = tmp_path / "history.json"
        file.write_text((await invocation.history()).to_json())
        for source in (invocation.id, str(file)):
            ran = await waystation(env, "replay", source, "--store", str(tmp_path / "other"))
            assert (ran.code, ran.out.startswith(f"not replayed  {source}")) == (1, True)
            assert "2 large values are missing. Name the workers' store with --store." in ran.out
            assert "[offloaded: " in ran.out
            with_store = await waystation(env, "replay", source, "--store", str(payload_store), "--json")
            assert (with_store.code, with_store.records[0]["replays"]) == (0, True)


async def test_a_session_is_shown_without_the_store(serve: Serve, waystation: Command, tmp_path: Path) -> None:
    """The messages are shown in short form, while the agents read them whole."""
    model = ScriptedModel(says("First."), says("Second."))
    async with serve(Agent(name="clerk", model=model), verify=False) as env:
        session = new_session(env, "clerk")
        await session.say("z" * 300_000)
        await session.say("and?")
        assert len(str(model.requests[1].contents[0])) > 300_000
        await settled_events(session)
        named = ("session", "show", session.given.session_id, "--user", "ann")
        ran = await waystation(env, *named, "--store", str(tmp_path))
        assert (ran.code, "clerk: Second." in ran.out, len(ran.out) < 5_000) == (0, True, True)
        assert "user: [offloaded: 300.0 kB, sha256 " in ran.out
        assert "in short form" in ran.err


async def test_pages_and_streams_show_short_forms(serve: Serve, tmp_path: Path) -> None:
    """A page is complete without the store, and a stream has every event."""
    async with serve(reader()) as env:
        invocation = await run_to_end(env)
        async with site(await client_with_another_store(env, tmp_path)) as web, web.program() as program:
            page = await program.get(page_of(invocation), headers={"Accept": "text/html"})
            assert ("[offloaded: " in page.text, "Read." in page.text, len(page.text) < 10_000) == (True, True, True)
            fields = await stream_of(program, f"{page_of(invocation)}/events")
            assert [field.get("id") for field in fields] == ["0", "1", "2", "3", None]
            assert any(SHORT in field["data"] for field in fields)


async def test_a_page_without_short_forms_names_the_missing_store(serve: Serve, tmp_path: Path) -> None:
    """A page names the store if its client was not created for display only."""
    async with serve(reader()) as env:
        invocation = await run_to_end(env)
        other = await AgentClient.connect(address=env.server.address, store=tmp_path)
        async with site(other) as web, web.program() as program:
            answer = await program.get(f"{page_of(invocation)}/events.json")
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "StoreFailed")
            assert "--store" in answer.json()["error"]["message"]


async def test_a_call_with_unavailable_arguments_cannot_be_approved(
    serve: Serve, waystation: Command, tmp_path: Path
) -> None:
    """Nobody can approve unreadable arguments. The error names the store, and the call can still be rejected."""
    async with serve(payer(till := Till(), {"amount": 5, "note": "x" * 300_000})) as env:
        invocation, id = await begun(env.client, "payer")
        problem = f"The store at {tmp_path.as_uri()} failed: it does not have the arguments of '{id}'."
        edited = ("edit", id, "--args", '{"amount": 1}')
        for line in (("approve", id), ("waive", invocation.id, "fc-1"), edited, ("approve", "--all", "--yes")):
            ran = await waystation(env, *line, "--store", str(tmp_path))
            assert (ran.code, problem in ran.err) == (1, True), line
        assert (await waystation(env, "reject", id, "--store", str(tmp_path))).code == 0
        await invocation.result()
        assert till.paid == []


async def test_a_page_offers_no_approval_of_unavailable_arguments(serve: Serve, tmp_path: Path) -> None:
    """The banner names the store. Approvals by older forms and programs are refused, and a rejection counts."""
    async with serve(payer(Till(), {"amount": 5, "note": "x" * 300_000})) as env:
        path = path_of((await begun(env.client, "payer"))[1])
        async with site(await client_with_another_store(env, tmp_path)) as web, web.browser() as me:
            for place in (path, f"/approvals/several?call={path.removeprefix('/approvals/')}"):
                page = (await me.page(place)).text
                parts = "so you cannot approve the call here", tmp_path.as_uri(), 'value="approve"', 'value="reject"'
                assert [part in page for part in parts] == [True, True, False, True]
            assert (await me.page(f"{path}/arguments.json")).status_code == 503
            assert (await me.send(path, {**await me.fields(path), "action": "approve"})).status_code == 422
            rejected = await me.send(path, {**await me.fields(path), "action": "reject"})
            assert "This call was rejected" in rejected.text


async def test_the_inbox_of_another_store_has_a_banner(serve: Serve, tmp_path: Path) -> None:
    """An inbox with another store has a banner; one with the workers' store has none."""
    async with serve(payer(Till(), {"amount": 5})) as env:
        invocation, _ = await begun(env.client, "payer")
        await wait_until(env.client.pending, "the call in the list")
        for client, is_other in ((await client_with_another_store(env, tmp_path), True), (env.client, False)):
            async with site(client) as web, web.browser() as me:
                page = (await me.page("/approvals")).text
                assert (tmp_path.as_uri() in page, "use another store" in page) == (is_other, is_other)
        await invocation.reject()


@pytest.mark.slow
async def test_another_process_reads_offloaded_values(serve: Serve, payload_store: Path, tmp_path: Path) -> None:
    """The other process has the same store, from an option or from the environment."""
    async with serve(reader()) as env:
        invocation = await run_to_end(env)
        shell = Shell.at(tmp_path, env.server.address)
        whole = f'{{"result": "{"x" * LARGE}"}}'
        for line, environment in (
            (f"waystation events {invocation.id} --json --store {payload_store}", {}),
            (f"waystation events {invocation.id} --json", {"WAYSTATION_STORE": str(payload_store)}),
        ):
            code, out = await shell.run(line, **environment)
            events = [json.loads(text) for text in out.splitlines()]
            responses = [p.get("functionResponse") for e in events for p in e["content"]["parts"]]
            assert (code, json.dumps(responses[2]["response"])) == (0, whole)


@pytest.mark.parametrize(
    "named", [("events", "x"), ("sessions",), ("session", "show", "x"), ("chat", "clerk"), ("web",)]
)
async def test_every_command_takes_the_store(named: tuple[str, ...]) -> None:
    """Every command accepts the store option at any position."""
    for arguments in (("--store", "s3://bucket", *named), (*named, "--store", "s3://bucket")):
        ran = await command("--address", "127.0.0.1:1", *arguments)
        assert (ran.code, "Cannot reach a Temporal server" in ran.err) == (8, True), ran
