"""With encryption switched on, no content is readable in what Temporal and the stores write, or in logs."""

import base64
import json
import logging
import os
from collections.abc import AsyncIterator, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from google.genai import types
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.client import ScheduleIntervalSpec, ScheduleSpec, WorkflowFailureError
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from tests.programs import command
from tests.server.telemetry.test_traces import Exported
from tests.steps import (
    answer_and_finish,
    approve_and_finish,
    start_and_wait,
    wait_for_calls,
    wait_for_ignored_answers,
    wait_until,
)
from waystation.agents import Agent
from waystation.artifacts import ObjectStoreArtifactService
from waystation.auth import AuthCredential, AuthCredentialTypes
from waystation.auth.credential_store import Bucket, CredentialStore, Place
from waystation.client import delete_tenant_keys
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import WORKFLOW
from waystation.core.errors import DeletedHistory, InvalidAnswer, InvalidInput, KeyMissing
from waystation.core.log import AnswerIgnored
from waystation.embedded import EmbeddedServer
from waystation.history import decode_events, format_saved_history
from waystation.memory import MemoryEntry
from waystation.memory.sqlite_memory_service import SqliteMemoryService
from waystation.replay import Recording, replay
from waystation.storage import ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE
from waystation.testing import AgentEnvironment, ScriptedModel, assert_projection_matches, calls, says
from waystation.tools import Services
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext
from waystation.worker import MetricExport

PLACES = (
    *("instruction", "description", "message", "model", "argument", "nested", "result", "item", "large", "initial"),
    *(
        "session",
        "user",
        "app",
        "temp",
        "statekey",
        "metadata",
        "artifact",
        "artifactmeta",
        "memory",
        "raised",
        "cause",
    ),
    *("notice", "progress", "sofar", "response", "why", "comment", "edited", "person", "junk", "child", "helper"),
    *(
        "final",
        "said",
        "reply",
        "changed",
        "schedule",
        "schedulestate",
        "schedulemeta",
        "approver",
        "hint",
        "toolstate",
        "credential",
    ),
)

NOT_RECORDED = {"instruction", "cause"}
"""Places whose texts stay in the worker: the model's request, and the cause of an exception."""


def canary(place: str) -> str:
    """Return the text to plant at a place."""
    return f"Tweety{place}sings"


def find_canaries(data: bytes) -> set[str]:
    """Return the places whose texts are in some bytes, plain, in UTF-16, or in Base64 at any offset."""
    places = set()
    for place in PLACES:
        text = canary(place).encode()
        forms = {text, canary(place).encode("utf-16-le")}
        forms |= {base64.b64encode(b"\0" * shift + text)[4:-4] for shift in range(3)}
        if any(form in data for form in forms):
            places.add(place)
    return places


def read_files(folder: Path) -> bytes:
    """Return the content of all files below a folder."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def write_keys(file: Path, *names: str) -> None:
    """Write a key file with one key of each name."""
    keys = [
        {"kty": "oct", "kid": name, "k": base64.urlsafe_b64encode(name[:1].encode() * 32).decode()} for name in names
    ]
    file.write_text(json.dumps({"keys": keys}))
    file.chmod(0o600)


async def look(customer: str, tool_context: ToolContext, note: dict[str, str]) -> dict[str, Any]:
    """Look up a customer."""
    for prefix, place in (("", "session"), ("user:", "user"), ("app:", "app"), ("temp:", "temp")):
        tool_context.state[f"{prefix}seen"] = canary(place)
    tool_context.state[canary("statekey")] = 1
    part = types.Part.from_bytes(data=canary("artifact").encode(), mime_type="text/plain")
    await tool_context.save_artifact("notes.txt", part, {"about": canary("artifactmeta")})
    memory = MemoryEntry(content=types.Content(parts=[types.Part(text=canary("memory"))]))
    await tool_context.add_memory(memories=[memory])
    return {"found": canary("result"), "items": [canary("item")], "text": f"{canary('large')} " * 20_000}


def fail(reason: str) -> None:
    """Fail."""
    raise ValueError(canary("raised")) from KeyError(canary("cause"))


def ask(question: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": canary("notice")}


def pay(to: str) -> dict[str, str]:
    """Pay."""
    return {"paid": to}


def agent() -> Agent:
    """Return an agent whose model, tools and instructions contain planted texts."""
    helper = Agent(name="helper", description=canary("description"), model=ScriptedModel(says(canary("helper"))))
    policy = ApprovalPolicy(approvers=(canary("approver"), canary("person")), verified=False)
    model = ScriptedModel(
        calls(("look", {"customer": canary("argument"), "note": {"x": canary("nested")}}), text=canary("model")),
        calls(("fail", {"reason": canary("hint")}), ("helper", {"request": canary("child")})),
        calls(("pay", {"to": canary("toolstate")}), ("ask", {"question": "now?"})),
        says(canary("final")),
    )
    payer = FunctionTool(pay, require_confirmation=True, approval=policy)
    tools = [look, fail, payer, LongRunningFunctionTool(ask), AgentTool(helper)]
    return Agent(name="teller", instruction=canary("instruction"), model=model, tools=tools)


@pytest.fixture
async def db_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[EmbeddedServer, Path]]:
    """Run a server that writes its data to a file in its own folder."""
    folder = tmp_path_factory.mktemp("server")
    async with EmbeddedServer(db_filename=folder / "temporal.db") as server:
        yield server, folder


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a key file with one key, with encryption and user keys switched on."""
    file = tmp_path / "encryption.json"
    write_keys(file, "first")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(tmp_path / "user-keys.db"))
    monkeypatch.setattr("waystation.storage.user_keys.CACHE_S", 0.2)
    return file


async def complete(invocation: Invocation) -> None:
    """Answer the pending calls of an invocation, after answers that do not count."""
    await wait_for_calls(invocation, "fc-4", "fc-5")
    await invocation.handle.signal("answer", canary("junk"))
    await invocation.answer("progress", "fc-5", response={canary("sofar"): canary("progress")}, wake=False)
    await invocation.answer(
        "edit", "fc-4", args={"to": canary("edited")}, by=canary("person"), comment=canary("comment")
    )
    assert (
        await answer_and_finish(
            invocation, "respond", "fc-5", response={"answer": canary("response")}, comment=canary("why")
        )
    ).text == canary("final")


class PlainCredentials(CredentialStore):
    """A credential store that does not encrypt by itself."""

    def __init__(self, file: Path) -> None:
        self._file, self._values = file, dict[Place, str]()

    def read(self, place: Place) -> str | None:
        """Return a value."""
        return self._values.get(place)

    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Write all values to the file."""
        self._values = {**self._values, place: text} if text is not None else self._values
        self._file.write_text(str(self._values))


async def plant(server: EmbeddedServer, folder: Path, caplog: pytest.LogCaptureFixture) -> dict[str, bytes]:
    """Plant the texts, and return what was written and sent, by place. Readers with the keys read everything."""
    caplog.set_level(logging.INFO)  # at DEBUG, Temporal's SDK logs what workflows receive
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))  # `logs` restores it
    talker = Agent(name="talker", model=ScriptedModel(says(canary("reply"))))
    memory, credentials = SqliteMemoryService(folder / "memory.db"), PlainCredentials(folder / "credentials")
    services = Services(
        artifacts=ObjectStoreArtifactService(folder / "artifacts"), memory=memory, credentials=credentials
    )
    key = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=canary("credential"))
    credentials.keep(Bucket("waystation", "ann", "vault"), key)
    metrics = MetricBuffer(10_000)
    spans = Exported()
    counts = MetricExport(Runtime(telemetry=TelemetryConfig(metrics=metrics)).metric_meter)
    async with AgentEnvironment(
        agent(),
        talker,
        server=server,
        services=services,
        store=folder / "store",
        offload_over=10_000,
        interceptors=[counts, spans.export],
    ) as env:
        invocation = await env.client.start(
            "teller",
            canary("message"),
            state={"s": canary("initial")},
            user_id="ann",
            metadata={"m": canary("metadata")},
        )
        await complete(invocation)
        session = env.client.session(agent="talker", session_id="s", user_id="ann")
        sent = await session.send(canary("said"))
        assert (await sent.result()).text == canary("reply")
        await session.change_state({"k": canary("changed")})
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=300))])
        await env.client.schedule(
            "talker",
            canary("schedule"),
            spec,
            state={"s": canary("schedulestate")},
            metadata={"m": canary("schedulemeta")},
        )
        await assert_projection_matches(invocation)
        exported = folder / "exported.json"
        exported.write_text(json.dumps(format_saved_history(await invocation.saved())))
        recording = await Recording.read(exported, store=str(folder / "store"))
        await replay(recording)
        memories = await memory.search_memory(app_name="waystation", user_id="ann", query=canary("memory"))
        log = await invocation.log()
        assert (recording.log.state.outcome, len(memories.memories)) == (log.state.outcome, 1)
        assert credentials.credential(Bucket("waystation", "ann", "vault")) == key
        assert {"message", "result", "edited"} <= find_canaries(str(log.state.events).encode())
        counts.close()
        return {
            "stores": read_files(folder),
            "descriptions": b"".join(
                [described.raw_description.SerializeToString() async for described in _describe_all(env.client)]
            ),
            "queries": b"".join([await _query(env.client, invocation.id, name) for name in ("events", "state")]),
            "metrics": str([(u.metric.name, u.attributes) for u in metrics.retrieve_updates()]).encode(),
            "spans": "".join(span.to_json() for span in await spans.of(invocation.id, sent.invocation_id)).encode(),
            "logs": caplog.text.encode(),
        }


async def _query(client: AgentClient, id: str, name: str) -> bytes:
    """Return the answer to a query as the server sends it."""
    request = QueryWorkflowRequest(
        namespace=client.temporal.namespace,
        execution=WorkflowExecution(workflow_id=id),
        query=WorkflowQuery(query_type=name),
    )
    return (await client.temporal.workflow_service.query_workflow(request)).SerializeToString()


async def test_no_content_is_readable(
    db_server: tuple[EmbeddedServer, Path],
    keys: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    logs: list[MutableMapping[str, Any]],
) -> None:
    """No planted text is in what the server and the stores have, in exports, queries, metrics, spans or logs."""
    server, database = db_server
    written = await plant(server, tmp_path, caplog)
    written |= {"database": read_files(database), "events": str(logs).encode()}
    assert {place: find_canaries(data) for place, data in written.items() if find_canaries(data)} == {}


@pytest.mark.slow
async def test_without_encryption_each_text_is_found(
    db_server: tuple[EmbeddedServer, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    logs: list[MutableMapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without encryption, the texts are found where the other test searches. Logs, metrics and spans contain names, but
    no content.
    """
    for name in (ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    server, database = db_server
    written = await plant(server, tmp_path, caplog)
    written |= {"database": read_files(database), "events": str(logs).encode()}
    places = {place: find_canaries(data) for place, data in written.items()}
    assert set(PLACES) - set().union(*places.values()) == NOT_RECORDED
    assert {place for place, texts in places.items() if not texts} == {"metrics", "spans", "logs", "events"}
    assert {place for place in ("metrics", "spans", "events") if b"teller" not in written[place]} == set()


async def _describe_all(client: AgentClient) -> AsyncIterator[Any]:
    async for execution in client.temporal.list_workflows(""):
        yield await client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id).describe()


def asker() -> Agent:
    """Return an agent that asks and then waits."""
    model = ScriptedModel(calls(("ask", {"question": "now?"})), says("Asked."), says("Done."))
    return Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])


def restart_with(keys: Path, *names: str) -> None:
    """Read other keys, as processes do when they start."""
    file = keys.with_name(f"{'-'.join(names) or 'none'}.json")
    write_keys(file, *names)
    os.environ[ENCRYPTION_VARIABLE] = str(file)


@pytest.mark.slow
async def test_a_key_is_rotated_while_a_call_is_pending(server: EmbeddedServer, keys: Path, tmp_path: Path) -> None:
    """Workers and clients with a new first key continue what was encrypted with the old one."""
    agent = asker()
    place: dict[str, Any] = {"server": server, "store": tmp_path / "store", "task_queue": "rotated"}
    async with AgentEnvironment(agent, **place) as env:
        invocation = await start_and_wait(env.client.start("asker", "go", id="rotated"), "fc-1")
    restart_with(keys, "second", "first")
    async with AgentEnvironment(agent, **place) as env:
        invocation = env.client.invocation(invocation.id)
        assert (await approve_and_finish(invocation, "fc-1")).text
        used = (await invocation.history()).events
        ids = {id for id in (b"first", b"second") if any(id in event.SerializeToString() for event in used)}
        assert ids == {b"first", b"second"}
        await assert_projection_matches(invocation)


@pytest.mark.slow
async def test_copies_of_a_deleted_users_history_are_unreadable(
    server: EmbeddedServer, keys: Path, tmp_path: Path
) -> None:
    """After `forget`, an exported history shows `[deleted]`, and the user can return."""
    talker = Agent(name="talker", model=ScriptedModel(*(says(canary("reply")) for _ in range(4))))
    async with AgentEnvironment(talker, server=server, store=tmp_path / "store", task_queue="forgotten") as env:
        ann, bob = (env.client.session(agent="talker", session_id="s", user_id=f"{name}-forgotten") for name in "ab")
        exported = []
        for session in (ann, bob):
            await session.say(canary("said"))
            exported.append(tmp_path / f"{session.given.user_id}.json")
            exported[-1].write_text(json.dumps(format_saved_history(await session.invocation(1).saved())))
            assert find_canaries(str((await Recording.read(exported[-1])).log.state.events).encode()) >= {"said"}
        for id in (ann.id, f"{ann.id}/1"):
            described = await env.client.temporal.get_workflow_handle(id).describe()
            history = await env.client.temporal.get_workflow_handle(id).fetch_history()
            parts = [described.raw_description, *history.events]
            assert [part for part in parts if b"first" in part.SerializeToString()] == []  # the namespace's key
        deleted = await env.client.forget_user(ann.given.user_id)
        assert (len(deleted.workflows), deleted.keys) == (2, 1)
        with pytest.raises(DeletedHistory, match=r"\[deleted\]"):
            await Recording.read(exported[0])
        assert (await command("replay", str(exported[0]), str(exported[1]))).code == 0
        listed = await command("events", str(exported[0]), "--json")
        assert (listed.code, find_canaries(listed.out.encode())) == (0, set())
        assert "activity_task_scheduled" in [record["kind"] for record in listed.records]
        assert (await Recording.read(exported[1])).log.state.outcome.ended
        second_session = env.client.session(agent="talker", session_id="s2", user_id=ann.given.user_id)
        assert (await second_session.say(canary("said"))).text == canary("reply")


@pytest.mark.slow
async def test_a_tenants_data_is_unreadable_once_its_keys_are_deleted(
    server: EmbeddedServer, keys: Path, tmp_path: Path
) -> None:
    """Deleting a tenant's keys covers invocations without a session and `app:` state, and no other tenant's data."""

    def note(tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["app:seen"] = canary("app")
        return "noted"

    model = ScriptedModel(*(reply for _ in range(2) for reply in (calls(("note", {})), says(canary("reply")))))
    talker = Agent(name="talker", model=model, tools=[note])
    async with AgentEnvironment(talker, server=server, store=tmp_path / "store", task_queue="tenants") as env:
        copies, invocations = [], []
        for tenant in ("leaving", "staying"):
            invocation = await env.client.start("talker", canary("message"), tenant=tenant)
            assert invocation.id.startswith(f"invocation/{tenant}~~waystation/user/talker-")
            await invocation.result()
            invocations.append(invocation)
            state = await env.client.temporal.get_workflow_handle(f"app/{tenant}~~waystation").fetch_history()
            copies.append([*(await invocation.history()).events, *state.events])
        planned = await delete_tenant_keys(env.client.temporal, "leaving", dry_run=True)
        deleted = await delete_tenant_keys(env.client.temporal, "leaving")
        assert (deleted.stopped, deleted.keys) == (planned.stopped, planned.keys) == (["app/leaving~~waystation"], 2)
        converter = env.client.temporal.data_converter
        canaries = [find_canaries(str(await decode_events(events, converter)).encode()) for events in copies]
        assert canaries == [set(), {"message", "reply", "app"}]
        left = await command("--address", server.address, "events", invocations[0].id, "--json")
        assert left.code == 0, left.err
        assert "workflow_execution_completed" in [record["kind"] for record in left.records]
        assert await env.client.app_state(tenant="staying") == {"app:seen": canary("app")}


@pytest.mark.slow
async def test_an_id_does_not_select_the_key_of_another_owner(
    server: EmbeddedServer, keys: Path, tmp_path: Path
) -> None:
    """Deleting the key would make the invocation unreadable, so the client and the worker refuse such an ID."""
    id, params = "invocation/leaving~~waystation/user/x", {"agent": "asker", "message": "go", "tenant": "staying"}
    async with AgentEnvironment(asker(), server=server, store=tmp_path / "store", task_queue="named") as env:
        with pytest.raises(InvalidInput, match="selects the encryption key"):
            await env.client.start("asker", "go", id=id, tenant="staying")
        await env.client.temporal.start_workflow(WORKFLOW, params, id=id, task_queue="nobody")
        await wait_until(lambda: is_listed(env, id), "the invocation in the list")
        assert id not in (await delete_tenant_keys(env.client.temporal, "leaving", dry_run=True)).stopped
        assert id in (await delete_tenant_keys(env.client.temporal, "staying")).stopped
        with pytest.raises(WorkflowFailureError) as failed:
            await env.client.temporal.execute_workflow(WORKFLOW, params, id=f"{id}y", task_queue="named")
        assert "selects the encryption key" in str(failed.value.cause)


async def is_listed(env: AgentEnvironment, id: str) -> bool:
    """Return whether a workflow is in the server's list."""
    return (await env.client.temporal.count_workflows(f"WorkflowId = '{id}'")).count == 1


@pytest.mark.slow
async def test_an_invocation_with_a_missing_key_hides_no_others(
    server: EmbeddedServer, keys: Path, tmp_path: Path, logs: list[MutableMapping[str, Any]]
) -> None:
    """Lists contain the invocation without its encrypted values, and the log names the missing key."""
    place: dict[str, Any] = {"server": server, "store": tmp_path / "store", "task_queue": "listed"}
    async with AgentEnvironment(asker(), **place) as env:
        lost = await start_and_wait(env.client.start("asker", "go", id="lost"), "fc-1")
    restart_with(keys, "second")
    async with AgentEnvironment(asker(), **place | {"task_queue": "listed-too"}) as env:
        other = await start_and_wait(env.client.start("asker", "go", id="other"), "fc-1")

        async def is_listed() -> bool:
            return other.id in {call.invocation_id for call in await env.client.pending()}

        await wait_until(is_listed, "the pending call")
        listed = {entry.id: entry.pending async for entry in env.client.invocations.list(status="open")}
        assert (len(listed[lost.id]), len(listed[other.id])) == (0, 1)
        with pytest.raises(KeyMissing, match="the key 'first'"):
            await env.client.invocation(lost.id).pending()
        for line in (("pending", lost.id), ("approve", lost.id, "fc-1")):
            ran = await command("--address", server.address, *line)
            assert (ran.code, "cannot be read: it is encrypted with the key 'first'" in ran.err) == (1, True)
        await env.client.temporal.get_workflow_handle(lost.id).terminate()
    [problem] = {entry["problem"] for entry in logs if entry.get("workflow_id") == lost.id}
    assert "the key 'first'" in problem


@pytest.mark.slow
async def test_a_sender_with_a_key_that_the_worker_lacks_learns_which_one(
    server: EmbeddedServer, keys: Path, tmp_path: Path
) -> None:
    """An update is refused with the key's ID rather than the store's, and a signal is recorded as ignored."""
    place: dict[str, Any] = {"server": server, "store": tmp_path / "store", "task_queue": "keyed"}
    async with AgentEnvironment(asker(), **place) as env:
        invocation = await start_and_wait(env.client.start("asker", "go", id="keyed"), "fc-1")
        restart_with(keys, "second", "first")
        sender = await AgentClient.connect(address=server.address, store=tmp_path / "store")
        with pytest.raises(InvalidAnswer, match="encrypted with the key 'second', which this worker does not have"):
            await sender.invocation("keyed").approve("fc-1")
        await sender.invocation("keyed").approve("fc-1", signal=True)
        assert await wait_for_ignored_answers(invocation, 1) == ["NotInStore"]
        [entry] = [entry.body for entry in (await invocation.log()).entries if isinstance(entry.body, AnswerIgnored)]
        assert ENCRYPTION_VARIABLE in entry.message
        restart_with(keys, "second")
        sender = await AgentClient.connect(address=server.address, store=tmp_path / "store")
        with pytest.raises(InvalidAnswer, match=f"a key that this process does not have. Set {ENCRYPTION_VARIABLE}"):
            await sender.invocation("keyed").approve("fc-1")
        await invocation.handle.terminate()
