"""The servers and stores that chaos runs on: the development server and a folder, unless others are chosen."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args
from unittest import mock
from urllib.parse import urlsplit

from tests.cluster.temporal_cluster import Cluster, build_programs, find_postgres, running_cluster
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.store_servers import postgres_server, s3_server
from waystation.embedded import HOST, EmbeddedServer
from waystation.storage import ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE
from waystation.storage.blobs import STORE_VARIABLE

SetupName: TypeAlias = Literal["development", "services", "cluster"]
SETUPS: tuple[SetupName, ...] = get_args(SetupName)


class Servers(Protocol):
    """One or more server processes at an address that does not change."""

    @property
    def restarts(self) -> Counter[bool]:
        """Number of restarts, by whether the process was killed."""

    @property
    def address(self) -> str:
        """Host and port."""

    async def restart(self, *, kill: bool) -> None:
        """Kill a server process, or ask it to stop, and start it again with the same database."""


class DevelopmentServer:
    """The development server. It stops with the block."""

    def __init__(self, db_filename: Path) -> None:
        self._db_filename = db_filename
        self._server = EmbeddedServer(db_filename=db_filename)
        self.restarts = Counter[bool]()

    async def __aenter__(self) -> "DevelopmentServer":
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._server.__aexit__()

    @property
    def address(self) -> str:
        """Host and port."""
        return self._server.address

    async def restart(self, *, kill: bool, empty: bool = False) -> None:
        """Start the server again with its database, or with an empty one."""
        if kill:
            os.kill(self._server.pid, signal.SIGKILL)
        await self._server.__aexit__()
        if empty:
            for path in self._db_filename.parent.glob(f"{self._db_filename.name}*"):
                path.unlink()
        port = int(self.address.rpartition(":")[2])
        self._server = EmbeddedServer(db_filename=self._db_filename, port=port)
        await self._server.__aenter__()
        self.restarts[kill] += 1


@dataclass(frozen=True)
class ClusterServers:
    """The server processes of a cluster, which are restarted in turn."""

    cluster: Cluster
    restarts: Counter[bool] = field(default_factory=Counter)

    @property
    def address(self) -> str:
        """Host and port of the load balancer."""
        return self.cluster.address

    async def restart(self, *, kill: bool) -> None:
        """Kill or stop the next server process, and start it again."""
        host = self.cluster.hosts[self.restarts.total() % len(self.cluster.hosts)]
        await asyncio.to_thread(self.cluster.end_server, host, signal.SIGKILL if kill else signal.SIGTERM)
        await self.cluster.start_server(host)
        self.restarts[kill] += 1


@dataclass(frozen=True)
class Stores:
    """The stores of the workers, and how to make them fail."""

    environment: Mapping[str, str]
    """Variables of the processes that use the stores."""
    lose: Callable[[], None]
    restore: Callable[[], None]


def folder_store(folder: Path) -> Stores:
    """Return a folder for large payloads. If it is lost, workers find and fill an empty one."""
    store, lost = folder / "store", folder / "lost"

    def lose() -> None:
        if store.exists():
            store.rename(lost)

    def restore() -> None:
        """Put the lost payloads back, beside those stored since then."""
        for path in [path for path in lost.rglob("*") if path.is_file()]:
            target = store / path.relative_to(lost)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)

    return Stores({STORE_VARIABLE: str(store)}, lose, restore)


class Gate:
    """Forwards connections to a server until it is closed, which also cuts the open connections."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self._target = target.hostname, target.port
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_open = True

    async def __aenter__(self) -> "Gate":
        self._listener = await asyncio.start_server(self._forward, HOST, 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._listener.close()
        self.close()

    @property
    def address(self) -> str:
        """Host and port of the gate."""
        return f"{HOST}:{self._listener.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Cut all connections, and refuse new ones."""
        self.is_open = False
        for writer in self._writers:
            writer.close()

    def open(self) -> None:
        """Forward new connections."""
        self.is_open = True

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            if self.is_open:
                there, back = await asyncio.open_connection(*self._target)
                with closing(back):
                    await asyncio.gather(self._pipe(reader, back), self._pipe(there, writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(OSError):
                while data := await reader.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
        finally:
            self._writers.discard(writer)
            writer.close()


async def service_stores(folder: Path, stack: AsyncExitStack) -> Stores:
    """Start PostgreSQL and S3, with quotas and user keys in the former and encrypted payloads in the latter."""
    s3 = stack.enter_context(s3_server())
    postgres_url = stack.enter_context(postgres_server())
    gates = [await stack.enter_async_context(Gate(url)) for url in (s3["AWS_ENDPOINT_URL"], postgres_url)]
    password = urlsplit(postgres_url).password
    database = f"postgresql://postgres:{password}@{gates[1].address}/postgres"
    keys, quotas = folder / "encryption.json", folder / "quotas.toml"
    write_keys(keys, "first")
    quotas.write_text(f"store = {json.dumps(database)}\n[[limits]]\nmodel = '*'\nrequests_per_minute = 1_000_000\n")
    environment = {
        **s3,
        "AWS_ENDPOINT_URL": f"http://{gates[0].address}",
        STORE_VARIABLE: "s3://bucket/payloads",
        ENCRYPTION_VARIABLE: str(keys),
        USER_KEYS_VARIABLE: database,
        "WAYSTATION_QUOTAS": str(quotas),
    }

    def lose() -> None:
        for gate in gates:
            gate.close()

    def restore() -> None:
        for gate in gates:
            gate.open()

    return Stores(environment, lose, restore)


@asynccontextmanager
async def running(name: SetupName, folder: Path) -> AsyncIterator[tuple[Servers, Stores]]:
    """Run the servers and stores of a setup. This process has the variables of the stores, too."""
    async with AsyncExitStack() as stack:
        stores = await service_stores(folder, stack) if name == "services" else folder_store(folder)
        stack.enter_context(mock.patch.dict(os.environ, stores.environment))
        if name == "cluster":
            url = stack.enter_context(postgres_server(find_postgres()))
            cluster = await stack.enter_async_context(running_cluster(build_programs(), folder, url))
            yield ClusterServers(cluster), stores
        else:
            yield await stack.enter_async_context(DevelopmentServer(folder / "temporal.db")), stores


def cycle(setups: Sequence[SetupName], count: int) -> list[SetupName]:
    """Return a setup for each of `count` runs. The last one named is repeated."""
    return [setups[min(number, len(setups) - 1)] for number in range(count)]
