"""A program of a user, with a worker that ends when the plugin requests it: `python -m … ADDRESS TASK_QUEUE`."""

import asyncio
import sys
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import Worker

from tests.server.processes.blocking_agents.blocking.agent import root_agent
from waystation.core.contract import Settings
from waystation.worker import WaystationPlugin


async def main(address: str, task_queue: str) -> int:
    """Serve until the plugin requests an exit, and return its exit code."""
    requested: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settings = Settings(event_loop_limit=timedelta(seconds=3), max_rss=400 << 20)
    plugin = WaystationPlugin([root_agent], settings=settings, request_exit=requested.set_result)
    client = await Client.connect(address, plugins=[plugin])
    async with Worker(client, task_queue=task_queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        return await requested


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
