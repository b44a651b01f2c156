"""Agents on a server that many tests share, each served for one test."""

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle

from waystation.agents.base_agent import BaseAgent
from waystation.apps import App
from waystation.client import AgentClient, Invocation
from waystation.embedded import EmbeddedServer
from waystation.testing.checks import assert_invocation_holds
from waystation.testing.environment import AgentEnvironment

_queues = itertools.count()


@contextlib.asynccontextmanager
async def serving(
    *agents: BaseAgent | App,
    server: EmbeddedServer,
    store: str | Path,
    verify: bool | Callable[[Invocation], Awaitable[None]] = True,
    **options: Any,
) -> AsyncIterator[AgentEnvironment]:
    """Serve agents on a server; afterwards look whether every invocation that was started replays.

    Args:
        agents: The agents, or apps.
        server: It is left running.
        store: Where large payloads are kept: as long as the server, since one worker may go on with what another began.
        verify: Whether to replay every invocation afterwards, and to compare it with what its workflow holds; or
            another check, which is called with each invocation. The default is `assert_invocation_holds`.
        options: Further ones of `AgentEnvironment`.

    Raises:
        NotReplayable: The present code would not do what was recorded.
        AssertionError: History and workflow differ.
    """
    queue = options.pop("task_queue", f"test-{os.getpid()}-{next(_queues)}")
    started = _Started()
    async with AgentEnvironment(*agents, server=server, store=store, task_queue=queue, **options) as env:
        config = env.temporal.config()
        config["interceptors"] = [started]
        env.client = AgentClient(Client(**config), task_queue=queue, blobs=env.client.blobs)
        yield env
        if verify:
            check = assert_invocation_holds if verify is True else verify
            for workflow_id in started.ids:
                await check(env.client.invocation(workflow_id))


class _Started(Interceptor):
    """Notes which workflows a client starts."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Stand before the client's own calls."""
        started = self.ids

        class Noting(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
                started.append(input.id)
                return await super().start_workflow(input)

        return Noting(next)


@contextlib.contextmanager
def shared_server() -> Iterator[EmbeddedServer]:
    """Run a server that belongs to no event loop of a test: each may have its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="waystation-server", daemon=True)
    thread.start()
    server = EmbeddedServer()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
