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
from temporalio.client import ScheduleIntervalSpec, ScheduleSpec

from tests.server.workflows.outside import until, waiting
from waystation.agents import Agent
from waystation.artifacts import ObjectStoreArtifactService
from waystation.client import delete_tenant_keys
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core import ApprovalPolicy, ForeignHistory
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
    ),
)


def canary(place: str) -> str:
    """Return the text to plant at a place."""
    return f"Tweety{place}sings"


def find_canaries(data: bytes) -> set[str]:
    """Return the places whose texts are in some bytes, plain, in UTF-16, or in Base64 at any offset."""
    found = set()
    for place in PLACES:
        text = canary(place).encode()
        forms = {text, canary(place).encode("utf-16-le")}
        forms |= {base64.b64encode(b"\0" * shift + text)[4:-4] for shift in range(3)}
        if any(form in data for form in forms):
            found.add(place)
    return found


def read_files(folder: Path) -> bytes:
    """Return the content of all files below a folder."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def write_keys(file: Path, *names: str) -> None:
    """Write a key file with one key of each name."""
    keys = [
        {"kty": "oct", "kid": name, "k": base64.urlsafe_b64encode(name[:1].encode() * 32).decode()} for name in names
    ]
    file.write_text(json.dumps({"keys": keys}))


async def look(customer: str, tool_context: ToolContext, note: dict[str, str]) -> dict[str, Any]:
    """Look a customer up."""
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
    """Ask somebody."""
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


@pytest.fixture(scope="module")
async def db_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[EmbeddedServer, Path]]:
    """A server that writes its data to a file in a folder of its own."""
    folder = tmp_path_factory.mktemp("server")
    async with EmbeddedServer(db_filename=folder / "temporal.db") as server:
        yield server, folder


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key file with one key, with encryption and the keys of users switched on."""
    file = tmp_path / "encryption.json"
    write_keys(file, "first")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(tmp_path / "user-keys.db"))
    monkeypatch.setattr("waystation.storage.user_keys.CACHE_S", 0.2)
    return file


async def complete(invocation: Invocation) -> None:
    """Answer the pending calls of an invocation, after answers that do not count."""
    await waiting(invocation, "fc-4", "fc-5")
    await invocation.handle.signal("answer", canary("junk"))
    await invocation.answer("progress", "fc-5", response={canary("sofar"): canary("progress")}, wake=False)
    await invocation.answer(
        "edit", "fc-4", args={"to": canary("edited")}, by=canary("person"), comment=canary("comment")
    )
    await invocation.answer("respond", "fc-5", response={"answer": canary("response")}, comment=canary("why"))
    assert (await invocation.result()).text == canary("final")


async def test_no_content_is_readable(
    db_server: tuple[EmbeddedServer, Path],
    keys: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    logs: list[MutableMapping[str, Any]],
) -> None:
    """None of the planted texts is in the server's database, in a store, in an export, or in a log."""
    caplog.set_level(logging.INFO)  # at DEBUG, Temporal's SDK logs what workflows receive
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))  # `logs` restores it
    server, folder = db_server
    talker = Agent(name="talker", model=ScriptedModel(says(canary("reply"))))
    memory = SqliteMemoryService(tmp_path / "memory.db")
    services = Services(artifacts=ObjectStoreArtifactService(tmp_path / "artifacts"), memory=memory)
    async with AgentEnvironment(
        agent(), talker, server=server, services=services, store=tmp_path / "store", offload_over=10_000
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
        assert (await session.say(canary("said"))).text == canary("reply")
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
        log = await invocation.log()
        exported = tmp_path / "exported.json"
        exported.write_text(json.dumps(format_saved_history(await invocation.saved())))
        recording = await Recording.read(exported, store=str(tmp_path / "store"))
        await replay(recording)
        found = await memory.search_memory(app_name="waystation", user_id="ann", query=canary("memory"))
        assert recording.log.state.outcome == log.state.outcome
        pages = [described.raw_description.SerializeToString() async for described in _describe_all(env.client)]
    written = read_files(tmp_path) + read_files(folder) + b"".join(pages) + caplog.text.encode()
    written += str(logs).encode()
    assert find_canaries(written) == set()
    assert "tool_call.completed" in {entry["event"] for entry in logs}
    assert (b"teller" in written, len(found.memories)) == (True, 1)
    assert {"message", "result", "edited"} <= find_canaries(str(log.state.events).encode())


async def _describe_all(client: AgentClient) -> AsyncIterator[Any]:
    async for execution in client.temporal.list_workflows(""):
        yield await client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id).describe()


def asker() -> Agent:
    """Return an agent that asks and then waits."""
    model = ScriptedModel(calls(("ask", {"question": "now?"})), says("Asked."), says("Done."))
    return Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])


def restart_with(keys: Path, *names: str) -> None:
    """Read other keys than before, as processes do when they start."""
    file = keys.with_name(f"{'-'.join(names) or 'none'}.json")
    write_keys(file, *names)
    os.environ[ENCRYPTION_VARIABLE] = str(file)


async def test_a_key_is_rotated_while_a_call_is_pending(server: EmbeddedServer, keys: Path, tmp_path: Path) -> None:
    """Workers and clients with a new first key continue what was encrypted with the old one."""
    agent = asker()
    place: dict[str, Any] = {"server": server, "store": tmp_path / "store", "task_queue": "rotated"}
    async with AgentEnvironment(agent, **place) as env:
        invocation = await env.client.start("asker", "go", id="rotated")
        await waiting(invocation, "fc-1")
    restart_with(keys, "second", "first")
    async with AgentEnvironment(agent, **place) as env:
        invocation = env.client.invocation(invocation.id)
        await invocation.approve("fc-1")
        assert (await invocation.result()).text
        used = (await invocation.history()).events
        ids = {id for id in (b"first", b"second") if any(id in event.SerializeToString() for event in used)}
        assert ids == {b"first", b"second"}
        await assert_projection_matches(invocation)


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
        with pytest.raises(ForeignHistory, match=r"\[deleted\]"):
            await Recording.read(exported[0])
        assert (await Recording.read(exported[1])).log.state.outcome.ended
        again = env.client.session(agent="talker", session_id="s2", user_id=ann.given.user_id)
        assert (await again.say(canary("said"))).text == canary("reply")


async def test_a_tenants_data_is_unreadable_once_its_keys_are_deleted(
    server: EmbeddedServer, keys: Path, tmp_path: Path
) -> None:
    """This covers invocations without a session and `app:` state. The data of other tenants stays readable."""

    def note(tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["app:seen"] = canary("app")
        return "noted"

    model = ScriptedModel(*(reply for _ in range(2) for reply in (calls(("note", {})), says(canary("reply")))))
    talker = Agent(name="talker", model=model, tools=[note])
    async with AgentEnvironment(talker, server=server, store=tmp_path / "store", task_queue="tenants") as env:
        copies = []
        for tenant in ("leaving", "staying"):
            invocation = await env.client.start("talker", canary("message"), tenant=tenant)
            assert invocation.id.startswith(f"invocation/{tenant}~~waystation/user/talker-")
            await invocation.result()
            state = await env.client.temporal.get_workflow_handle(f"app/{tenant}~~waystation").fetch_history()
            copies.append([*(await invocation.history()).events, *state.events])
        planned = await delete_tenant_keys(env.client.temporal, "leaving", dry_run=True)
        deleted = await delete_tenant_keys(env.client.temporal, "leaving")
        assert (deleted.stopped, deleted.keys) == (planned.stopped, planned.keys) == (["app/leaving~~waystation"], 2)
        converter = env.client.temporal.data_converter
        found = [find_canaries(str(await decode_events(events, converter)).encode()) for events in copies]
        assert found == [set(), {"message", "reply", "app"}]
        assert await env.client.app_state(tenant="staying") == {"app:seen": canary("app")}


async def test_an_invocation_with_a_missing_key_hides_no_others(
    server: EmbeddedServer, keys: Path, tmp_path: Path, logs: list[MutableMapping[str, Any]]
) -> None:
    """Lists contain it without what is encrypted, and the log names the missing key."""
    place: dict[str, Any] = {"server": server, "store": tmp_path / "store", "task_queue": "listed"}
    async with AgentEnvironment(asker(), **place) as env:
        lost = await env.client.start("asker", "go", id="lost")
        await waiting(lost, "fc-1")
    restart_with(keys, "second")
    async with AgentEnvironment(asker(), **place | {"task_queue": "listed-too"}) as env:
        other = await env.client.start("asker", "go", id="other")
        await waiting(other, "fc-1")

        async def is_listed() -> bool:
            return other.id in {call.invocation_id for call in await env.client.pending()}

        await until(is_listed, "the pending call")
        listed = {entry.id: entry.pending async for entry in env.client.invocations.list(status="open")}
        assert (len(listed[lost.id]), len(listed[other.id])) == (0, 1)
        await env.client.temporal.get_workflow_handle(lost.id).terminate()
    [problem] = {entry["problem"] for entry in logs if entry.get("workflow_id") == lost.id}
    assert "the key 'first'" in problem
