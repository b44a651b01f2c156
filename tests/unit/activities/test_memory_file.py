"""The memory file works with several processes and leaves no deleted data."""

import asyncio
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from google.genai import types

from tests.paths import ROOT
from waystation.core.errors import StoreFailed
from waystation.memory import MemoryEntry
from waystation.memory.sqlite_memory_service import SqliteMemoryService

REMEMBER = """
import asyncio, sys
from waystation.events import Event
from waystation.memory import SqliteMemoryService
service = SqliteMemoryService(sys.argv[1])
def said(number):
    return Event(id=str(number), author="user", message=f"tea {number}")
async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    scope = {"app_name": "shop", "user_id": "ann"}
    await asyncio.gather(*(service.add_events_to_memory(**scope, events=[said(n)]) for n in range(30)))
asyncio.run(main())
"""


def entry(text: str) -> MemoryEntry:
    """Return a memory entry."""
    return MemoryEntry(content=types.Content(parts=[types.Part(text=text)]))


async def count_matches(service: SqliteMemoryService, query: str) -> int:
    """Return the number of Ann's memories that a search finds."""
    return len((await service.search_memory(app_name="shop", user_id="ann", query=query)).memories)


@pytest.mark.slow
def test_processes_share_a_file(tmp_path: Path) -> None:
    """Three processes that create the file at once and add the same events store each event once."""
    file = tmp_path / "memory.db"
    command = [sys.executable, "-c", REMEMBER, str(file)]
    pipe = subprocess.PIPE
    writers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for _ in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [(writer.communicate()[0], writer.returncode) for writer in writers] == [("", 0)] * 3
    assert asyncio.run(count_matches(SqliteMemoryService(file, max_results=1_000), "tea")) == 30


def test_memories_outlive_the_process_and_are_private(tmp_path: Path) -> None:
    """Only the owner can read the file."""
    file = tmp_path / "a" / "memory.db"
    asyncio.run(SqliteMemoryService(file).add_memory(app_name="shop", user_id="ann", memories=[entry("tea")]))
    assert asyncio.run(count_matches(SqliteMemoryService(file), "tea")) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_deleted_memory_is_not_found(tmp_path: Path) -> None:
    """Deleted memories are removed from the index, too."""
    service = SqliteMemoryService(tmp_path / "memory.db")

    async def story() -> None:
        await service.add_memory(app_name="shop", user_id="ann", memories=[entry("green tea")])
        (memory,) = (await service.search_memory(app_name="shop", user_id="ann", query="tea")).memories
        await service.delete_memory(app_name="shop", user_id="ann", memory_id=memory.id)
        await service.add_memory(app_name="shop", user_id="ann", memories=[entry("black tea")])
        assert await count_matches(service, "green") == 0
        assert await count_matches(service, "tea") == 1

    asyncio.run(story())


def test_a_file_of_another_kind_is_left_unchanged(tmp_path: Path) -> None:
    """The error names the file."""
    file = tmp_path / "notes.json"
    file.write_text(json.dumps(list(range(1_000))))
    with pytest.raises(StoreFailed, match=r"notes\.json failed: DatabaseError"):
        asyncio.run(count_matches(SqliteMemoryService(file), "tea"))
    assert json.loads(file.read_text()) == list(range(1_000))
