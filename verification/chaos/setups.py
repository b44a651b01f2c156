"""The servers and stores of chaos: by default, the development server and a folder."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from unittest import mock
from urllib.parse import urlsplit

from tests.proxies import forwarding
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.store_servers import postgres_server, s3_server
from verification.cluster.temporal_cluster import Cluster, build_programs, find_postgres, running_cluster
from waystation.embedded import EmbeddedServer
from waystation.storage import ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE
from waystation.storage.blobs import STORE_VARIABLE

SetupName: TypeAlias = Literal["development", "services", "cluster"]
SETUPS: tuple[SetupName, ...] = get_args(SetupName)


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


Servers: TypeAlias = DevelopmentServer | ClusterServers


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


async def service_stores(folder: Path, stack: AsyncExitStack) -> Stores:
    """Start PostgreSQL and S3, with quotas and user keys in the former and encrypted payloads in the latter."""
    s3 = stack.enter_context(s3_server())
    postgres_url = stack.enter_context(postgres_server())
    is_lost = asyncio.Event()

    async def take(data: bytes) -> bytes:
        if is_lost.is_set():
            raise ConnectionResetError
        return data

    s3_address, postgres_address = [
        await stack.enter_async_context(forwarding(partial(asyncio.open_connection, url.hostname, url.port), take))
        for url in map(urlsplit, (s3["AWS_ENDPOINT_URL"], postgres_url))
    ]
    database = f"{postgres_url.rpartition('@')[0]}@{postgres_address}/postgres"
    keys, quotas = folder / "encryption.json", folder / "quotas.toml"
    write_keys(keys, "first")
    quotas.write_text(f"store = {json.dumps(database)}\n[[limits]]\nmodel = '*'\nrequests_per_minute = 1_000_000\n")
    environment = {
        **s3,
        "AWS_ENDPOINT_URL": f"http://{s3_address}",
        STORE_VARIABLE: "s3://bucket/payloads",
        ENCRYPTION_VARIABLE: str(keys),
        USER_KEYS_VARIABLE: database,
        "WAYSTATION_QUOTAS": str(quotas),
    }
    return Stores(environment, lose=is_lost.set, restore=is_lost.clear)


@asynccontextmanager
async def running(name: SetupName, folder: Path) -> AsyncIterator[tuple[Servers, Stores]]:
    """Run the servers and stores of a setup. The variables of the stores are set in this process, too."""
    async with AsyncExitStack() as stack:
        stores = await service_stores(folder, stack) if name == "services" else folder_store(folder)
        stack.enter_context(mock.patch.dict(os.environ, stores.environment))
        if name == "cluster":
            url = stack.enter_context(postgres_server(find_postgres()))
            cluster = await stack.enter_async_context(running_cluster(build_programs(), folder, url))
            yield ClusterServers(cluster), stores
        else:
            yield await stack.enter_async_context(DevelopmentServer(folder / "temporal.db")), stores
