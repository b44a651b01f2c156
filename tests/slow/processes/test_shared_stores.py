"""Workers that share only Temporal, PostgreSQL and an object store continue each other's invocations."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tests.server.processes import test_crashes
from tests.server.processes.ledger import VARIABLE
from tests.server.processes.workers import Place, WorkerProcess, until
from tests.slow.processes.conftest import on_shared_stores
from waystation.auth import PostgresCredentialService
from waystation.client import AgentClient

KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
AGENT = '''
    """An agent that needs every store."""

    import asyncio
    import json
    from datetime import timedelta

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
        ledger().note("gathered", attempt=tool_context.attempt)
        await asyncio.to_thread(ledger().wait, "gathered")
        return {"pages": "x" * 500_000}


    async def unlock(credential: AuthCredential) -> dict[str, str]:
        """Use the key of the user."""
        ledger().note("unlocked")
        await asyncio.to_thread(ledger().wait, "unlocked")
        return {"key": credential.api_key[-3:]}


    async def recall(tool_context: ToolContext) -> dict[str, object]:
        """Read what other workers stored."""
        artifact = await tool_context.load_artifact("kept.txt")
        found = await tool_context.search_memory("tea")
        return {"artifact": artifact and artifact.text, "memories": len(found.memories)}


    def follow(request: LlmRequest) -> LlmResponse:
        """Call the tools one after the other, then say what they answered."""
        _, answered = latest_turn(request)
        steps = ["gather", "unlock", "recall"]
        if len(answered) < len(steps):
            return calls((steps[len(answered)], {}))
        (_, first), *others = answered
        return says(json.dumps([len(first["pages"]), *(answer for _, answer in others)]))


    soon = timedelta(seconds=2)
    config = AuthConfig(auth_scheme=APIKey(in_=APIKeyIn.header, name="X-Key"), credential_key="vault")
    root_agent = Agent(
        name="keeper",
        model=FunctionModel(follow),
        tools=[
            FunctionTool(gather, heartbeat_timeout=soon),
            AuthenticatedFunctionTool(unlock, auth_config=config, heartbeat_timeout=soon),
            recall,
        ],
    )
'''


async def test_each_worker_continues_where_a_killed_one_stopped(
    place: Place, tmp_path: Path, s3: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads, artifacts, memories and credentials of a killed worker are available to the next one."""
    monkeypatch.setenv("WAYSTATION_CREDENTIAL_KEY", KEY)
    (tmp_path / "agents" / "keeper").mkdir(parents=True)
    (tmp_path / "agents" / "keeper" / "agent.py").write_text(dedent(AGENT))
    stores = ("--store", f"{s3}/payloads", "--artifacts", f"{s3}/artifacts", "--memory", postgres)
    where = ("--agents", str(tmp_path / "agents"), "--address", place.address, "--task-queue", place.task_queue)

    @asynccontextmanager
    async def worker() -> AsyncIterator[WorkerProcess]:
        options = (*where, *stores, "--credentials", postgres, "--strict")
        async with WorkerProcess(*options, environment={VARIABLE: str(place.ledger.folder)}) as process:
            yield process
        assert process.events("store.differs") == process.events("store.unavailable") == []

    client = await AgentClient.connect(address=place.address, task_queue=place.task_queue, store=f"{s3}/payloads")
    async with worker() as first:
        invocation = await client.start("keeper", "I like tea", user_id="ann", session_id="s1")
        await until(lambda: place.ledger.lines("gathered"), "something stored")
        await first.kill()
    place.ledger.open("gathered")
    async with worker() as second:
        [call] = await until(invocation.pending, "a call that needs a credential")
        store = PostgresCredentialService(postgres)
        await invocation.authorize(call.function_call_id, store=store, credential="vault-key")
        await until(lambda: place.ledger.lines("unlocked"), "a credential in use")
        await second.kill()
    place.ledger.open("unlocked")
    async with worker():
        result = await invocation.result()
    assert json.loads(result.text) == [500_000, {"key": "key"}, {"artifact": "kept", "memories": 1}]
    assert [line["attempt"] for line in place.ledger.lines("gathered")] == [1, 2]


@on_shared_stores
async def test_running_calls_of_a_killed_worker_end_as_on_local_stores(place: Place) -> None:
    """Repeatable calls are made again under the same key. The outcome of all others is unknown."""
    async with test_crashes.crash(place) as stories:
        await test_crashes.test_a_call_of_a_killed_worker_is_repeated_under_the_same_key(stories)
        for tool in ("hold_once", "hold_confirmed"):
            await test_crashes.test_a_call_with_the_effect_once_is_not_repeated(stories, tool)
