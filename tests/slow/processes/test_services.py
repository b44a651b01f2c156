"""Worker processes use the configured stores, also after a crash."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from google.genai import types

from tests.paths import ROOT
from tests.programs import undisturbed
from tests.server.processes.ledger import VARIABLE
from tests.server.processes.workers import AGENTS, Place, WorkerProcess, until
from waystation.artifacts.object_store_artifact_service import ObjectStoreArtifactService
from waystation.core.contract import text_of
from waystation.memory.sqlite_memory_service import SqliteMemoryService

KEEPER = '''
    """An agent that stores each message."""

    import asyncio
    import json
    from datetime import timedelta

    from google.genai import types

    from tests.server.processes.ledger import ledger
    from waystation.tools import FunctionTool, ToolContext
    from waystation.agents import Agent
    from waystation.models import LlmRequest, LlmResponse
    from waystation.testing.models import FunctionModel, calls, latest_turn, says


    async def keep(tool_context: ToolContext) -> dict[str, int]:
        """Save, remember, and wait for a gate."""
        version = await tool_context.save_artifact("kept.txt", types.Part.from_text(text="kept"))
        await tool_context.add_session_to_memory()
        ledger().note("kept", attempt=tool_context.attempt)
        await asyncio.to_thread(ledger().wait, "after")
        return {"version": version}


    def follow(request: LlmRequest) -> LlmResponse:
        """Call the tool, then say what it answered."""
        _, answered = latest_turn(request)
        return says(json.dumps(answered)) if answered else calls(("keep", {}))


    tool = FunctionTool(keep, heartbeat_timeout=timedelta(seconds=2))
    root_agent = Agent(name="keeper", model=FunctionModel(follow), tools=[tool])
'''
ANN: dict[str, Any] = {"app_name": "waystation", "user_id": "ann"}


async def test_data_of_a_killed_worker_is_stored_once(place: Place, tmp_path: Path) -> None:
    """Another process repeats the call: it receives the earlier version, and stores no memory twice."""
    (tmp_path / "agents" / "keeper").mkdir(parents=True)
    (tmp_path / "agents" / "keeper" / "agent.py").write_text(dedent(KEEPER))
    artifacts, memory = tmp_path / "artifacts", tmp_path / "memory.db"
    where = ("--agents", str(tmp_path / "agents"), "--address", place.address, "--task-queue", place.task_queue)
    kept_at = ("--artifacts", artifacts.as_uri(), "--memory", str(memory))

    def worker() -> WorkerProcess:
        return WorkerProcess(*where, *kept_at, environment={VARIABLE: str(place.ledger.folder)})

    client = await place.client()
    async with worker() as first:
        invocation = await client.start("keeper", "I like tea", user_id="ann", session_id="s1")
        await until(lambda: place.ledger.lines("kept"), "something kept")
        await first.kill()
    place.ledger.open("after")
    async with worker():
        result = await invocation.result()
    assert [line["attempt"] for line in place.ledger.lines("kept")] == [1, 2]
    assert json.loads(result.text) == [["keep", {"version": 0}]]
    service = ObjectStoreArtifactService(artifacts)
    assert await service.list_versions(**ANN, session_id="s1", filename="kept.txt") == [0]
    kept = await service.load_artifact(**ANN, session_id="s1", filename="kept.txt")
    assert kept == types.Part.from_text(text="kept")
    found = await SqliteMemoryService(memory).search_memory(**ANN, query="tea")
    assert [text_of(entry.content.model_dump(exclude_none=True)) for entry in found.memories] == ["I like tea"]


def test_a_worker_does_not_start_with_an_unusable_store() -> None:
    """The worker names an unusable store before it connects, and repeats no password."""
    command = [sys.executable, "worker.py", "--agents", str(AGENTS), "--artifacts", "ftp://ann:hidden@host/x"]
    done = subprocess.run(command, cwd=ROOT, env=undisturbed(), capture_output=True, text=True, timeout=60, check=False)
    line = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, line["event"]) == (1, "worker.failed")
    assert line["problem"].startswith("Artifacts cannot be stored in ftp://host/x (--artifacts): ")
    assert "hidden" not in done.stderr
