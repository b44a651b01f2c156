"""IDs of stores show whether two processes use the same stores."""

import asyncio
import base64
from collections.abc import Callable, Coroutine, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from google.genai import types

from waystation.artifacts import InMemoryArtifactService, ObjectStoreArtifactService
from waystation.auth import EncryptedFileCredentialService, InMemoryCredentialService, PostgresCredentialService
from waystation.events import Event
from waystation.memory import InMemoryMemoryService, PostgresMemoryService, SqliteMemoryService
from waystation.storage import ObjectFiles, StoreIds, store_ids

KEY = base64.urlsafe_b64encode(bytes(32)).decode()
Write: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def open_kind(kind: str, request: pytest.FixtureRequest, folder: Path) -> tuple[Any, Write]:
    """Return a store of a kind, and a function that writes to it."""

    async def write() -> None:
        match store:
            case ObjectFiles():
                await store.put("file", b"data")
            case SqliteMemoryService() | PostgresMemoryService():
                event = Event(id="e", content=types.UserContent("tea"))
                await store.add_events_to_memory(app_name="shop", user_id="ann", events=[event])
            case _:
                store.write(("a",), "text")

    store: Any
    match kind:
        case "folder":
            store = ObjectFiles(folder / "store")
        case "s3":
            store = ObjectFiles(request.getfixturevalue("s3"))
        case "memory file":
            store = SqliteMemoryService(folder / "memory.db")
        case "memory table":
            store = PostgresMemoryService(request.getfixturevalue("postgres"))
        case "credential file":
            store = EncryptedFileCredentialService(folder / "credentials", key=KEY)
        case _:
            store = PostgresCredentialService(request.getfixturevalue("postgres"), key=KEY)
    return store, write


KINDS = ["folder", "s3", "memory file", "memory table", "credential file", "credential table"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_processes_with_the_same_store_read_the_same_id(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The ID is created once, also by several simultaneous processes, and does not change."""
    store, write = open_kind(kind, request, tmp_path)
    await write()
    ids = await asyncio.gather(*(open_kind(kind, request, tmp_path)[0].store_id() for _ in range(5)))
    assert set(ids) == {await store.store_id()}
    assert [len(id) for id in ids] == [8] * 5


@pytest.mark.parametrize("kind", ["folder", "memory file", "credential file"])
def test_reading_an_id_creates_no_file(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A missing file or folder has an empty ID until something is written."""
    store, write = open_kind(kind, request, tmp_path)
    assert asyncio.run(store.store_id()) == ""
    assert list(tmp_path.iterdir()) == []
    asyncio.run(write())
    assert len(asyncio.run(store.store_id())) == 8


@pytest.mark.parametrize("kind", ["folder", "memory file", "credential file"])
async def test_different_stores_have_different_ids(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The IDs distinguish two stores of the same kind."""
    ids = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        store, write = open_kind(kind, request, tmp_path / name)
        await write()
        ids.add(await store.store_id())
    assert len(ids) == 2


async def test_a_store_in_memory_has_no_id() -> None:
    """In-memory stores cannot be shared, so they are not compared."""
    ids = StoreIds(
        artifacts=InMemoryArtifactService(), memory=InMemoryMemoryService(), credentials=InMemoryCredentialService()
    )
    assert await ids.read() == {}


async def test_ids_are_recorded_once_and_again_when_a_store_is_created(tmp_path: Path) -> None:
    """Nothing is recorded if the recorded IDs already include those of this process."""
    artifacts = ObjectStoreArtifactService(tmp_path / "artifacts")
    ids = StoreIds(payloads=ObjectFiles(tmp_path), artifacts=artifacts)
    first = await ids.compare(None)
    assert first is not None
    assert list(first) == ["payloads"]
    assert await ids.compare(first) is None
    assert await ids.compare({**first, "memory": "a store that this process does not have"}) is None
    (tmp_path / "artifacts").mkdir()
    second = await ids.compare(first)
    assert second == {**first, "artifacts": await artifacts.store_id()}


async def test_another_store_is_reported_once(tmp_path: Path, logs: list[MutableMapping[str, Any]]) -> None:
    """The warning names the option. A store that does not exist here, but was recorded elsewhere, differs too."""
    ids = StoreIds(payloads=ObjectFiles(tmp_path), artifacts=ObjectStoreArtifactService(tmp_path / "none"))
    for _ in range(2):
        assert await ids.compare({"payloads": "5e6f7a8b", "artifacts": "1a2b3c4d"}) is not None
    assert [line["event"] for line in logs] == ["store.differs"] * 2
    assert "--artifacts is an empty store, but another process recorded the store 1a2b3c4d" in logs[0]["problem"]
    assert "--store" in logs[1]["problem"]


async def test_a_store_that_fails_is_reported_once_and_not_compared(
    tmp_path: Path, logs: list[MutableMapping[str, Any]]
) -> None:
    """A worker starts although a store is not available, and does not read that store at each model call."""
    (tmp_path / "file").write_bytes(b"not a database" * 100)
    ids = StoreIds(memory=SqliteMemoryService(tmp_path / "file"))
    for _ in range(2):
        assert await ids.read() == {}
    assert [(line["event"], line["store"]) for line in logs] == [("store.unavailable", "--memory")]


async def test_a_store_that_failed_is_compared_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[MutableMapping[str, Any]]
) -> None:
    """An outage at the start delays the comparison and does not switch it off."""
    monkeypatch.setattr(store_ids, "RETRY_S", 0.0)
    path = tmp_path / "file"
    path.write_bytes(b"not a database" * 100)
    ids = StoreIds(memory=SqliteMemoryService(path))
    assert await ids.compare({"memory": "1a2b3c4d"}) is None
    path.unlink()
    await ids.compare({"memory": "1a2b3c4d"})
    assert [line["event"] for line in logs] == ["store.unavailable", "store.differs"]


async def test_concurrent_model_calls_read_the_ids_of_the_same_worker(tmp_path: Path) -> None:
    """The first read drops a store without an ID, which must not fail the other reads."""

    class Slow:
        async def store_id(self) -> None:
            """Yield to the other reads before answering, like a store on a network."""
            await asyncio.sleep(0)

    ids = StoreIds(payloads=ObjectFiles(tmp_path), artifacts=Slow())
    assert [list(read) for read in await asyncio.gather(*(ids.read() for _ in range(8)))] == [["payloads"]] * 8


async def test_a_silent_store_delays_the_start_only_briefly(
    monkeypatch: pytest.MonkeyPatch, logs: list[MutableMapping[str, Any]]
) -> None:
    """The start is not delayed by the client of an object store, which would retry for minutes."""
    monkeypatch.setattr(store_ids, "LIMIT_S", 0.01)

    class Silent:
        async def store_id(self) -> str:
            """Wait forever."""
            await asyncio.Event().wait()
            return ""

    assert await StoreIds(payloads=Silent()).read() == {}
    assert [(line["event"], line["problem"]) for line in logs] == [("store.unavailable", "no answer within 0.01 s")]
