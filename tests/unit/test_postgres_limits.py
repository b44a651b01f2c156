"""A process that is frozen or cut off while it holds a lock in PostgreSQL does not stop the others."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.paths import ROOT
from waystation.auth import PostgresCredentialService
from waystation.core import StoreFailed
from waystation.memory import PostgresMemoryService
from waystation.storage import MeteredCall, QuotaStore, Reservation
from waystation.storage.postgres import LIMIT_VARIABLE

GUARD_S = 60.0
"""Only failures take this long."""
FROZEN = """
import os, signal, sys
from waystation.auth import PostgresCredentialService
from waystation.storage import QuotaStore, postgres
url, holds = sys.argv[1:]
database = QuotaStore(url)._database
if holds == "credential":
    context = PostgresCredentialService(url, key=bytes(32)).held(("n",))
else:
    context = database.transaction()
with context as db:
    if holds == "quota row":
        db.execute("INSERT INTO waystation_quota_rates VALUES ('m', '{}')")
    elif holds == "tables":
        db.execute("SELECT pg_advisory_xact_lock(%s)", [postgres._SCHEMA_LOCK])
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def reserve(url: str) -> Reservation | float:
    """Reserve a model call."""
    call = MeteredCall(id="a", sender="", tenant="acme", user="ann", name="m")
    return asyncio.run(QuotaStore(url).reserve(call))


def refresh(url: str) -> None:
    """Take the lock under which a credential is refreshed."""
    with PostgresCredentialService(url, key=bytes(32)).held(("n",)):
        pass


def create_tables(url: str) -> None:
    """Create the tables of a store."""
    asyncio.run(PostgresMemoryService(url).list_user_apps(user_id="ann"))


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive all limits, also those of other processes, from one second."""
    monkeypatch.setenv(LIMIT_VARIABLE, "1")


@pytest.mark.parametrize(
    ("holds", "work"), [("quota row", reserve), ("credential", refresh), ("tables", create_tables)]
)
def test_a_frozen_process_does_not_stop_others(postgres: str, holds: str, work: Callable[[str], object]) -> None:
    """The server ends the transaction of a stopped process, and another process gets the lock."""
    command = [sys.executable, "-c", FROZEN, postgres, holds]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as frozen:
        ended = threading.Timer(GUARD_S, frozen.kill)
        ended.start()
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == b"held\n"
            work(postgres)
            assert frozen.poll() is None
        finally:
            ended.cancel()
            frozen.kill()


@asynccontextmanager
async def proxy(url: str, last: bytes) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Forward connections until a client sends `last`. After that, accept data but forward none.

    Yield the proxy's URL, and an event that is set when it falls silent.
    """
    target, silent = urlsplit(url), asyncio.Event()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if not silent.is_set():
                writer.write(data)
            if last in data:
                silent.set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(forward(reader, requests), forward(answers, writer))
        writer.close()
        requests.close()

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        yield url.replace(f":{target.port}/", f":{server.sockets[0].getsockname()[1]}/"), silent


async def test_a_connection_that_falls_silent_stops_neither_its_worker_nor_others(postgres: str) -> None:
    """The worker whose answer is lost reports the store as failed, and another one reserves its call."""
    await asyncio.to_thread(reserve, postgres)  # creates the row
    async with proxy(postgres, b"FOR UPDATE") as (url, silent), asyncio.timeout(GUARD_S):
        cut_off = asyncio.create_task(asyncio.to_thread(reserve, url))
        await silent.wait()
        assert isinstance(await asyncio.to_thread(reserve, postgres), Reservation)
        with pytest.raises(StoreFailed, match=r"OperationalError: the server did not answer within 3 s"):
            await cut_off


def test_a_wait_for_a_lock_ends_with_the_setting_that_limits_it(postgres: str) -> None:
    """A session without limits, for example that of an administrator, holds the row."""
    reserve(postgres)
    with psycopg.connect(postgres) as session:
        session.execute("SELECT * FROM waystation_quota_rates FOR UPDATE")
        with pytest.raises(StoreFailed, match=rf"LockNotAvailable: .*{LIMIT_VARIABLE} sets the limit"):
            reserve(postgres)


def test_a_process_does_not_wait_for_its_own_connections_without_a_limit(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all connections of a store are in use, a transaction fails instead of waiting for one."""
    monkeypatch.setenv(LIMIT_VARIABLE, "0.5")
    monkeypatch.setattr("waystation.storage.postgres.MAX_CONNECTIONS", 0)
    with pytest.raises(StoreFailed, match="connections of this process are in use"):
        reserve(postgres)


@pytest.mark.parametrize("limit", ["soon", "0", "-1", "nan", "inf"])
def test_an_invalid_limit_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error quotes the variable and its value."""
    monkeypatch.setenv(LIMIT_VARIABLE, limit)
    with pytest.raises(StoreFailed, match=f"{LIMIT_VARIABLE} is '{limit}'; set it to a number of seconds"):
        QuotaStore("postgresql://h/x")
