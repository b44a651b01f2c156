"""Replies record the IDs of the worker's stores, so that workers with other stores are noticed."""

import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests.programs import command
from tests.server.conftest import Serve
from tests.server.processes.workers import AGENTS, Process
from tests.server.workflows.test_continuing import ask
from tests.steps import approve_and_finish, start_and_wait, wait_for_calls
from waystation.agents import Agent
from waystation.client import Invocation
from waystation.core.log import ModelReplied
from waystation.embedded import EmbeddedServer
from waystation.key_set import EncryptionKeys
from waystation.storage import ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool


def asker() -> Agent:
    """Return an agent that waits for one answer and then finishes."""
    model = ScriptedModel(calls(("ask", {"what": "now?"})), says("Asked."), says("Done."))
    return Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])


async def recorded(invocation: Invocation) -> list[list[str]]:
    """Return the names of the stores that each reply recorded."""
    entries = (entry.body for entry in (await invocation.log()).entries)
    return [sorted(body.reply.stores or ()) for body in entries if isinstance(body, ModelReplied)]


async def test_the_ids_are_recorded_with_the_first_reply(serve: Serve, logs: list[MutableMapping[str, Any]]) -> None:
    """Later replies of the invocation do not repeat them, and nothing is logged."""
    async with serve(asker()) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
        await approve_and_finish(invocation, "fc-1")
        assert await recorded(invocation) == [["payloads"], [], []]
    assert logs == []


async def test_a_worker_with_another_store_is_noticed(
    serve: Serve, tmp_path: Path, logs: list[MutableMapping[str, Any]]
) -> None:
    """A worker with another store continues the invocation, logs the difference and records its own store."""
    (tmp_path / "other").mkdir()
    agent = asker()
    async with serve(agent, verify=False) as env:
        queue, invocation = env.client.task_queue, await env.client.start("asker", "go")
        await wait_for_calls(invocation, "fc-1")
    async with serve(agent, task_queue=queue, store=tmp_path / "other", verify=False):
        await approve_and_finish(invocation, "fc-1")
        assert await recorded(invocation) == [["payloads"], [], ["payloads"]]
    assert [line["event"] for line in logs] == ["store.differs"]
    assert "Use the same --store for all workers" in logs[0]["problem"]


@pytest.mark.slow
async def test_a_worker_and_a_client_with_another_store_start_only_without_strict(serve: Serve, tmp_path: Path) -> None:
    """Worker and client compare their stores with those of the newest open invocation on their task queue."""
    (tmp_path / "other").mkdir()
    async with serve(asker()) as env:
        queue, invocation = env.client.task_queue, await env.client.start("asker", "go")
        await wait_for_calls(invocation, "fc-1")
        where = ("--address", env.server.address, "--task-queue", queue, "--store", str(tmp_path / "other"))
        program = sys.executable, "worker.py", "--agents", str(AGENTS)
        async with Process(*program, *where, "--strict") as strict:
            assert await strict.exit_code() == 1
        [failed] = strict.events("worker.failed")
        assert "--store is the store" in failed["problem"]
        async with Process(
            sys.executable, "worker.py", "--only", "activities", "--agents", str(AGENTS), *where
        ) as worker:
            assert "another process recorded" in (await worker.logged("store.differs"))["problem"]
            ready = await worker.logged("worker.ready")
            assert ready["payload_store"] == (tmp_path / "other").as_uri()
            assert ready["memory_store"].endswith(".waystation/memory.db")
            assert ready["agent_folders"] == [AGENTS.as_uri()]
        refused = await command(*where, "web", "--port", "0", "--strict")
        assert (refused.code, "--store is the store" in refused.err) == (2, True), refused.err
        refused = await command(*where, "pending", "--strict")
        assert (refused.code, "--store is the store" in refused.err) == (2, True), refused.err
        warned = await command(*where, "store", "prune", "--dry-run")
        assert (warned.code, "--store is the store" in warned.err) == (0, True), warned.err
        assert "another process recorded" in (await command(*where, "doctor")).out
        await invocation.approve("fc-1")


@pytest.mark.slow
async def test_a_worker_starts_while_the_store_of_user_keys_is_unavailable(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker cannot compare its stores with those of the open invocation, but serves once the store is back."""
    EncryptionKeys.generate().create(tmp_path / "keys.json")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(tmp_path / "user-keys.db"))
    async with serve(asker(), verify=False) as env:
        session = env.client.session(agent="asker", session_id=env.client.task_queue, user_id="ann")
        await wait_for_calls(await session.send("go"), "fc-1")
        where = "--address", env.server.address, "--task-queue", env.client.task_queue, "--store", str(env.store)
        monkeypatch.setenv(USER_KEYS_VARIABLE, "postgresql://127.0.0.1:1/keys")
        async with Process(
            sys.executable, "worker.py", "--only", "activities", "--agents", str(AGENTS), *where
        ) as worker:
            assert "postgresql://127.0.0.1:1/keys" in (await worker.logged("stores.not_compared"))["problem"]
            await worker.logged("worker.ready")


@pytest.mark.slow
async def test_local_stores_with_a_remote_server_are_reported(server: EmbeddedServer) -> None:
    """One line names the stores that workers on other machines cannot use."""
    address = server.address.replace("127.0.0.1", "127.1")  # not one of the names of this machine
    program = sys.executable, "worker.py", "--agents", str(AGENTS), "--address", address
    async with Process(*program, "--memory", "postgresql://127.0.0.1:1/agents") as worker:
        line = await worker.logged("stores.local")
        assert (await worker.logged("store.unavailable"))["store"] == "--memory"
    assert line["stores"] == ["payload_store", "artifact_store", "credential_store"]
