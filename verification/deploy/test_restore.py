"""A backup that was made while a call waits continues in a new place, with the commands of the documentation."""

import base64
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from urllib.parse import urlsplit

import pytest

from tests.documents import blocks, how_to, section
from tests.paths import ROOT
from tests.server.cli.shell import Shell
from tests.server.processes.ledger import VARIABLE, Ledger
from tests.server.processes.workers import Process, until
from tests.store_servers import postgres_programs
from waystation.auth.credential_service.store_location import open_store
from waystation.client import AgentClient, Invocation

TEXT = how_to("back-up-and-restore")
BACK_UP, RESTORE = blocks(section(TEXT, "## One machine"), "sh")[:2]  # the third command copies user keys
[DUMP, LOAD] = blocks(section(TEXT, "## PostgreSQL and object stores"), "sh")
KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
AGENT = '''
    """An agent that needs every store, before and after it waits."""

    import json

    from google.genai import types

    from tests.server.processes.ledger import ledger
    from waystation.agents import Agent
    from waystation.auth import APIKey, APIKeyIn, AuthConfig, AuthCredential
    from waystation.models import LlmRequest, LlmResponse
    from waystation.testing.models import FunctionModel, calls, latest_turn, says
    from waystation.tools import FunctionTool, ToolContext
    from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool


    async def gather(tool_context: ToolContext) -> dict[str, str]:
        """Save an artifact, remember the conversation, and return a large result."""
        await tool_context.save_artifact("kept.txt", types.Part.from_text(text="kept"))
        await tool_context.add_session_to_memory()
        return {"pages": "x" * 500_000}


    def unlock(credential: AuthCredential) -> dict[str, str]:
        """Use the key of the user."""
        return {"key": credential.api_key[-3:]}


    async def pay(tool_context: ToolContext) -> dict[str, object]:
        """Pay, after a person has agreed, and read what was stored."""
        ledger().note("paid", key=tool_context.idempotency_key)
        artifact = await tool_context.load_artifact("kept.txt")
        found = await tool_context.search_memory("tea")
        return {"artifact": artifact and artifact.text, "memories": len(found.memories)}


    STEPS = ["gather", "unlock", "pay", "unlock"]


    def follow(request: LlmRequest) -> LlmResponse:
        """Call the tools one after the other, then say what they answered."""
        _, answered = latest_turn(request)
        if len(answered) < len(STEPS):
            return calls((STEPS[len(answered)], {}))
        (_, first), *others = answered
        return says(json.dumps([len(first["pages"]), *(answer for _, answer in others)]))


    config = AuthConfig(auth_scheme=APIKey(in_=APIKeyIn.header, name="X-Key"), credential_key="vault")
    root_agent = Agent(
        name="keeper",
        model=FunctionModel(follow),
        tools=[
            gather,
            AuthenticatedFunctionTool(unlock, auth_config=config),
            FunctionTool(pay, require_confirmation=True),
        ],
    )
'''
EVERYTHING = [500_000, {"key": "key"}, {"artifact": "kept", "memories": 1}, {"key": "key"}]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an agent."""
    monkeypatch.setenv("WAYSTATION_CREDENTIAL_KEY", KEY)
    (tmp_path / "agents" / "keeper").mkdir(parents=True)
    (tmp_path / "agents" / "keeper" / "agent.py").write_text(dedent(AGENT))
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    return tmp_path


@asynccontextmanager
async def worker(folder: Path, *options: str) -> AsyncIterator[AgentClient]:
    """Serve the agent in `folder` with an embedded server, and yield a client."""
    command = [sys.executable, str(ROOT / "worker.py"), "--agents", "../agents", "--embedded", "--db", "temporal.db"]
    line = f"cd {shlex.quote(str(folder))} && exec {shlex.join([*command, '--strict', *options])}"
    environment = {VARIABLE: str(folder.parent), "PYTHONPATH": str(ROOT)}
    async with Process("/bin/sh", "-c", line, environment=environment) as process:
        address = (await process.logged("server.ready"))["address"]
        await process.logged("worker.ready")
        yield await AgentClient.connect(address=address, store=str(folder / ".waystation" / "payloads"))
        assert await process.stop() == 0
        assert process.events("store.differs") == process.events("store.unavailable") == []


async def start_waiting(client: AgentClient, credentials: str) -> Invocation:
    """Start an invocation, and return it when its payment waits for approval."""
    invocation = await client.start("keeper", "I like tea", id="kept", user_id="ann", session_id="s1")
    [call] = await until(invocation.pending, "a call that needs a credential")
    await invocation.authorize(call.function_call_id, store=open_store(credentials), credential="vault-key")

    async def payment() -> bool:
        return [call.tool for call in await invocation.pending()] == ["pay"]

    await until(payment, "a payment that waits")
    return invocation


async def run_in(shell: Shell, folder: Path, commands: str) -> None:
    """Run commands of the documentation in a folder."""
    code, out = await shell.run(f"set -e; cd {shlex.quote(str(folder))}\n{commands}")
    assert code == 0, out


@pytest.mark.timeout(300)
async def test_a_folder_is_restored_from_a_backup_that_a_running_worker_allows(home: Path) -> None:
    """A payment that ran after the backup runs again, with its idempotency key; nothing that it needs is missing."""
    shell, old, new = Shell.at(home, ""), home / "old", home / "new"
    async with worker(old) as client:
        invocation = await start_waiting(client, str(old / ".waystation" / "credentials"))
        await run_in(shell, old, BACK_UP)
        await invocation.approve()
        assert json.loads((await invocation.result()).text) == EVERYTHING
    (old / "backup").rename(home / "backup")
    (old / ".waystation").rename(home / "lost")
    await run_in(shell, new, RESTORE)
    async with worker(new) as client:
        invocation = client.invocation("kept")
        assert [call.tool for call in await invocation.pending()] == ["pay"]
        await invocation.approve()
        assert json.loads((await invocation.result()).text) == EVERYTHING
    assert [line["key"] for line in Ledger(home).lines("paid")] == ["kept/fc-3"] * 2


@pytest.mark.timeout(300)
async def test_memories_and_credentials_are_restored_from_a_dump_of_postgresql(home: Path, postgres: str) -> None:
    """An invocation that began with one database continues with its restored copy."""
    shell, old, new = Shell.at(home, ""), home / "old", home / "new"
    place = urlsplit(postgres)
    access = (
        f"export PGHOST={place.hostname} PGPORT={place.port} PGUSER={place.username} PGPASSWORD={place.password} "
        f"PATH={postgres_programs()}:$PATH\n"
    )
    name, restored = place.path.lstrip("/"), f"{place.path.lstrip('/')}_restored"
    async with worker(old, "--memory", postgres, "--credentials", postgres) as client:
        await start_waiting(client, postgres)
        await run_in(shell, old, BACK_UP + access + re.sub(r"waystation$", name, DUMP.strip()))
    (old / "backup").rename(home / "backup")
    (old / ".waystation").rename(home / "lost")
    load = re.sub(r"\brestored\b", restored, LOAD).replace("backup/", "../backup/")
    await run_in(shell, new, RESTORE + access + load + f"dropdb {name}\n")
    restored_url = postgres.replace(name, restored)
    async with worker(new, "--memory", restored_url, "--credentials", restored_url) as client:
        invocation = client.invocation("kept")
        await invocation.approve()
        assert json.loads((await invocation.result()).text) == EVERYTHING
