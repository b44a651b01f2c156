"""Memories and credentials in PostgreSQL: processes, accounts, keys and vectors."""

import asyncio
import base64
import subprocess
import sys
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from google.genai import types

from tests import store_servers
from tests.paths import ROOT
from tests.proxies import forwarding
from tests.store_servers import POSTGRES_PASSWORD
from waystation.auth import EncryptedFileCredentialService, PostgresCredentialService, open_store
from waystation.auth.credential_service.credential_cipher import KEY_VARIABLE
from waystation.core.errors import CredentialStoreError, StoreFailed
from waystation.embedded import bind_to_this_process
from waystation.events import Event
from waystation.memory import (
    InMemoryMemoryService,
    MemoryEntry,
    PostgresMemoryService,
    SqliteMemoryService,
    open_memory,
)
from waystation.storage import MeteredCall, QuotaStore, Reservation
from waystation.storage.postgres import LIMIT_VARIABLE

ANN: dict[str, Any] = {"app_name": "shop", "user_id": "ann"}
KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
ADD = """
import sys, asyncio
from waystation.auth import PostgresCredentialService
from waystation.events import Event
from waystation.memory import PostgresMemoryService
memory, store = PostgresMemoryService(sys.argv[1]), PostgresCredentialService(sys.argv[1], key=sys.argv[2])
events = [Event(id=str(n), author="a", message=f"tea {n}") for n in range(30)]
asyncio.run(memory.add_events_to_memory(app_name="shop", user_id="ann", events=events))
for _ in range(10):
    with store.held(("n",)):
        store.write(("n",), str(int(store.read(("n",)) or 0) + 1))
"""


def text_events(*texts: str) -> list[Event]:
    """Return an event for each text."""
    contents = [types.UserContent(text) for text in texts]
    return [
        Event(id=text, author="user", timestamp=0, content=content)
        for text, content in zip(texts, contents, strict=True)
    ]


async def search(service: PostgresMemoryService, query: str) -> list[str]:
    """Return the texts of Ann's memories that a search finds."""
    response = await service.search_memory(**ANN, query=query)
    return [part.text or "" for memory in response.memories for part in memory.content.parts or ()]


async def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return vectors that are near for drinks, and for animals."""
    kinds = {"tea": 0.1, "coffee": 0.2, "drink": 0.14, "cat": 3.0, "animal": 2.9}
    angles = [next((kinds[word] for word in text.split() if word in kinds), 1.5) for text in texts]
    return [[1.0, angle] for angle in angles]


def test_processes_share_a_database_and_wait_for_one_another(postgres: str) -> None:
    """Two processes that create the tables at once lose no increment and store each event once."""
    command = [sys.executable, "-c", ADD, postgres, KEY]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert PostgresCredentialService(postgres, key=KEY).read(("n",)) == "20"
    assert len(asyncio.run(search(PostgresMemoryService(postgres, max_results=1_000), "tea"))) == 30


def test_a_process_that_dies_releases_its_lock(postgres: str) -> None:
    """The lock of a killed process does not keep others waiting."""
    program = (
        "import os, sys; from waystation.auth import PostgresCredentialService as S\n"
        "with S(sys.argv[1], key=sys.argv[2]).held(('n',)):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, postgres, KEY], cwd=ROOT).returncode == -9
    with PostgresCredentialService(postgres, key=KEY).held(("n",)):
        pass


def test_the_database_reveals_no_credential(postgres: str) -> None:
    """Neither names nor values can be read without the key, and entries cannot be exchanged."""
    store = PostgresCredentialService(postgres, key=KEY)
    store.write(("credential", "desk", "ann@acme.example"), "canary-51be07")
    store.write(("credential", "desk", "bob@acme.example"), "canary-51be08")
    with psycopg.connect(postgres) as db:
        rows = db.execute("SELECT place, value FROM waystation_credentials WHERE length(value) > 28").fetchall()
        assert not any(text in data for row in rows for data in row for text in (b"canary", b"acme", b"desk"))
        for (place, _), (_, value) in zip(rows, reversed(rows), strict=True):
            db.execute("UPDATE waystation_credentials SET value = %s WHERE place = %s", [value, place])
    with pytest.raises(CredentialStoreError, match="damaged"):
        store.read(("credential", "desk", "ann@acme.example"))


def test_another_key_is_refused_and_harms_nothing(postgres: str) -> None:
    """A wrong key is refused with a remedy and changes nothing."""
    PostgresCredentialService(postgres, key=KEY).write(("a",), "text")
    with pytest.raises(CredentialStoreError, match="written with a different key"):
        PostgresCredentialService(postgres, key=bytes(32)).write(("a",), "other")
    assert PostgresCredentialService(postgres, key=KEY).read(("a",)) == "text"


def test_a_key_is_required(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, the error gives the variable and the command that creates a key."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(CredentialStoreError, match=rf"Set {KEY_VARIABLE} .*openssl rand"):
        PostgresCredentialService(postgres).read(("a",))


def test_a_server_that_does_not_answer_is_named_without_its_password(postgres: str) -> None:
    """Errors name the server and the database, and quote neither the user nor the password."""
    url = urlsplit(postgres)._replace(netloc=f"ann:{POSTGRES_PASSWORD}@127.0.0.1:1").geturl()
    with pytest.raises(StoreFailed, match=r"postgresql://127\.0\.0\.1:1/test_\w+ failed: OperationalError") as failed:
        asyncio.run(search(PostgresMemoryService(url), "tea"))
    with pytest.raises(CredentialStoreError, match=r"127\.0\.0\.1:1") as refused:
        PostgresCredentialService(url, key=KEY).read(("a",))
    for error in (failed, refused):
        assert POSTGRES_PASSWORD not in str(error.value)
        assert "ann:" not in str(error.value)


@pytest.mark.parametrize("url", ["postgresql://ann:hidden@h/x?no_such=hidden", "postgresql://ann:hidden@[h/x"])
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    """The worker does not start with an invalid URL, and the error quotes no secrets."""
    with pytest.raises(StoreFailed, match="not valid") as refused:
        open_memory(url)
    assert "hidden" not in str(refused.value)


def test_an_account_that_cannot_create_tables_uses_existing_ones(postgres: str) -> None:
    """An administrator can create the tables, so that workers need no such permission."""
    service = PostgresMemoryService(postgres)
    asyncio.run(service.add_events_to_memory(**ANN, events=text_events("tea")))
    name = f"worker_{urlsplit(postgres).path.strip('/')}"
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{POSTGRES_PASSWORD}'".encode())
        db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON waystation_memories TO {name}".encode())
    account = PostgresMemoryService(postgres.replace("//postgres:", f"//{name}:"))
    asyncio.run(account.add_events_to_memory(**ANN, events=text_events("more tea")))
    assert asyncio.run(search(account, "tea")) == ["tea", "more tea"]


async def test_vectors_find_memories_without_a_common_word(postgres: str) -> None:
    """With an embedding model, memories are found by meaning too, and those that also share a word come first."""
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("CREATE EXTENSION vector")
    service = PostgresMemoryService(postgres, embed=embed, max_distance=0.1)
    await service.add_events_to_memory(**ANN, events=text_events("a cat sleeps", "tea is hot", "coffee is hot"))
    await service.add_events_to_memory(app_name="shop", user_id="bob", events=text_events("bob has tea"))
    assert await search(service, "some drink") == ["tea is hot", "coffee is hot"]
    assert await search(service, "coffee") == ["coffee is hot", "tea is hot"]
    await service.delete_memory(**ANN, memory_id="tea is hot")
    assert await search(service, "some drink") == ["coffee is hot"]
    with psycopg.connect(postgres) as db:
        assert db.execute("SELECT count(*) FROM waystation_memory_vectors").fetchone() == (3,)


async def test_missing_vectors_are_added_when_a_session_is_added_again(postgres: str) -> None:
    """Only texts without a vector are embedded, for example after the model failed once or was added later."""
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("CREATE EXTENSION vector")
    await PostgresMemoryService(postgres).add_events_to_memory(**ANN, events=text_events("tea", "coffee"))
    embedded: list[str] = []

    async def counting(texts: Sequence[str]) -> list[list[float]]:
        embedded.extend(texts)
        return await embed(texts)

    service = PostgresMemoryService(postgres, embed=counting)
    for _ in range(2):
        await service.add_events_to_memory(**ANN, events=text_events("tea", "coffee", "a cat"))
    assert sorted(embedded) == ["a cat", "coffee", "tea"]


async def test_vectors_of_another_model_are_ignored(postgres: str) -> None:
    """Vectors of another length do not match, and do not make the search fail."""
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("CREATE EXTENSION vector")
    await PostgresMemoryService(postgres, embed=embed).add_events_to_memory(**ANN, events=text_events("tea"))

    async def longer(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0, 0.0] for _ in texts]

    service = PostgresMemoryService(postgres, embed=longer)
    await service.add_events_to_memory(**ANN, events=text_events("coffee"))
    assert await search(service, "drink") == ["coffee"]


async def test_without_pgvector_words_are_searched(postgres: str, logs: list[MutableMapping[str, Any]]) -> None:
    """A database without the extension works, and a warning names the statement that installs the extension."""
    service = PostgresMemoryService(postgres, embed=embed)
    await service.add_events_to_memory(**ANN, events=text_events("tea"))
    assert (await search(service, "drink"), await search(service, "tea")) == ([], ["tea"])
    assert [(line["event"], "CREATE EXTENSION vector" in line["remedy"]) for line in logs] == [
        ("memory.without_vectors", True)
    ]


async def test_a_very_long_memory_is_stored(postgres: str) -> None:
    """A memory with more words than PostgreSQL can index is found by its first words."""
    service = PostgresMemoryService(postgres)
    text = f"first {'x' * 10_000} " + " ".join(f"\U00010400{number}" for number in range(200_000))
    entry = MemoryEntry(content=types.Content(parts=[types.Part(text=text)]))
    await service.add_memory(**ANN, memories=[entry])
    assert await search(service, "first") == [text]


def own_memory() -> InMemoryMemoryService:
    """Return a service, like an author's factory."""
    return InMemoryMemoryService()


def test_a_location_names_a_store(tmp_path: Path, postgres: str) -> None:
    """A location can be a file, a PostgreSQL URL, or a service in a module."""
    assert isinstance(open_memory(tmp_path / "memory.db"), SqliteMemoryService)
    assert isinstance(open_memory(postgres), PostgresMemoryService)
    assert isinstance(open_memory(f"python:{__name__}:own_memory"), InMemoryMemoryService)
    assert isinstance(open_store(tmp_path / "credentials"), EncryptedFileCredentialService)
    assert isinstance(open_store(postgres), PostgresCredentialService)
    with pytest.raises(StoreFailed, match="python:json:dumps"):
        open_memory("python:json:dumps")


GUARD_S = 60.0
"""The duration of failures only; successful calls take less."""
FROZEN = """
import os, signal, sys
from waystation.auth import PostgresCredentialService
from waystation.storage import QuotaStore, postgres
url, holds = sys.argv[1:]
table = QuotaStore(url)._table
if holds == "credential":
    context = PostgresCredentialService(url, key=bytes(32)).held(("n",))
else:
    context = table.transaction()
with context as db:
    if holds == "quota row":
        db.run("INSERT INTO waystation_quota_rates VALUES ('m', '{}')")
    elif holds == "tables":
        db.run("SELECT pg_advisory_xact_lock(?)", postgres._SCHEMA_LOCK)
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def reserve(url: str) -> Reservation | float:
    """Reserve a model call."""
    return asyncio.run(QuotaStore(url).reserve(MeteredCall(id="a", sender="", tenant="acme", user="ann", name="m")))


def refresh(url: str) -> None:
    """Take the lock under which a credential is refreshed."""
    with PostgresCredentialService(url, key=bytes(32)).held(("n",)):
        pass


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive all limits from one second, also those of other processes."""
    monkeypatch.setenv(LIMIT_VARIABLE, "1")


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    ("holds", "work"),
    [
        ("quota row", reserve),
        ("credential", refresh),
        ("tables", lambda url: asyncio.run(PostgresMemoryService(url).list_user_apps(user_id="ann"))),
    ],
)
def test_a_frozen_process_does_not_stop_others(postgres: str, holds: str, work: Callable[[str], object]) -> None:
    """The server ends the transaction of a stopped process, and another process gets the lock."""
    command = bind_to_this_process([sys.executable, "-c", FROZEN, postgres, holds])
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "held\n"
            work(postgres)
            assert frozen.poll() is None
        finally:
            frozen.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
async def test_a_connection_that_falls_silent_stops_neither_its_worker_nor_others(postgres: str) -> None:
    """A worker with a silent connection reports the store as failed, while another worker reserves its call."""
    await asyncio.to_thread(reserve, postgres)  # the row must exist before the connection falls silent
    target, silent, over = urlsplit(postgres), asyncio.Event(), asyncio.Event()

    async def take(data: bytes) -> bytes:
        if silent.is_set():
            await over.wait()
        if b"FOR UPDATE" in data:
            silent.set()
        return data

    connect = partial(asyncio.open_connection, target.hostname, target.port)
    async with forwarding(connect, take) as address, asyncio.timeout(GUARD_S):
        url = postgres.replace(f"{target.hostname}:{target.port}", address)
        cut_off = asyncio.create_task(asyncio.to_thread(reserve, url))
        await silent.wait()
        assert isinstance(await asyncio.to_thread(reserve, postgres), Reservation)
        with pytest.raises(StoreFailed, match=r"OperationalError: the server did not answer within 3 s"):
            await cut_off
        over.set()


@pytest.mark.usefixtures("short_limit")
def test_a_wait_for_a_lock_ends_with_the_setting_that_limits_it(postgres: str) -> None:
    """A session without limits, for example that of an administrator, holds the row."""
    reserve(postgres)
    with psycopg.connect(postgres) as session:
        session.execute("SELECT * FROM waystation_quota_rates FOR UPDATE")
        with pytest.raises(StoreFailed, match=rf"LockNotAvailable: .*{LIMIT_VARIABLE} sets the limit"):
            reserve(postgres)


@pytest.mark.parametrize("limit", ["soon", "0", "-1", "nan", "inf"])
def test_an_invalid_limit_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error quotes the variable and its value."""
    monkeypatch.setenv(LIMIT_VARIABLE, limit)
    with pytest.raises(StoreFailed, match=f"{LIMIT_VARIABLE} is '{limit}'; set it to 0.1 to 3600 seconds"):
        QuotaStore("postgresql://h/x")


@pytest.mark.slow
def test_postgresql_runs_from_a_folder_that_only_its_owner_can_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL, which does not run as root, runs from a folder that only its owner may enter, such as root's home.

    The path may contain any letters.
    """
    home = tmp_path / "größe 大"
    home.mkdir(mode=0o700)
    programs = store_servers.copy_programs(home)
    monkeypatch.setattr(store_servers, "postgres_programs", lambda: programs)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    with store_servers.postgres_server() as url, psycopg.connect(f"{url}postgres") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
