"""Development servers as Temporal ships them, which know nothing of Waystation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.client import Client

from tests.server.processes.workers import Process, until
from waystation.embedded import find_temporal


@asynccontextmanager
async def plain_server(port: int, *namespaces: str) -> AsyncIterator[Process]:
    """Start a server with an empty database, and yield it once it serves, or has ended because the port is taken."""
    options = ["--headless", "--log-level", "never", "--ip", "127.0.0.1", "--port", str(port)]
    for namespace in namespaces:
        options += ["--namespace", namespace]

    async def serves_or_ended() -> bool:
        try:
            client = await Client.connect(f"127.0.0.1:{port}", namespace=["default", *namespaces][-1])
            await client.count_workflows("")
        except RuntimeError:
            return not server.running
        return True

    async with Process(str(find_temporal()), "server", "start-dev", *options) as server:
        await until(serves_or_ended, "a Temporal server")
        yield server
