"""Server, worker and client in one `async with`."""

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from temporalio.client import Client
from temporalio.worker import Worker

from waystation.activities.model_choice import Models
from waystation.agents.base_agent import BaseAgent
from waystation.agents.registry import Registry
from waystation.apps import App
from waystation.client import AgentClient, connect
from waystation.embedded import EmbeddedServer
from waystation.models import BaseLlm
from waystation.storage import Blobs
from waystation.storage.driver import OFFLOAD_OVER
from waystation.tools.services import Services
from waystation.worker import create_worker
from waystation.worker.services import temporary_services


class AgentEnvironment:
    """A Temporal server with a worker that serves some agents.

    Workflows are not cached, so every step of every test is a replay of all before it.
    """

    def __init__(
        self,
        *agents: BaseAgent | App,
        model: BaseLlm | None = None,
        services: Services | None = None,
        server: EmbeddedServer | None = None,
        store: str | Path | None = None,
        offload_over: int = OFFLOAD_OVER,
        task_queue: str = "waystation",
        **worker_options: Any,
    ) -> None:
        """`model` replaces that of every agent; `server` is one that runs already, and is left running.

        `services` are those of the worker; by default artifacts and memories are kept until the environment is gone.
        `store` is where payloads of `offload_over` bytes and more are kept; by default a folder that goes with the
        environment.
        """
        self._agents, self._model, self._given_server = agents, model, server
        self.services = services or temporary_services()
        self._task_queue = task_queue
        self._options = {"max_cached_workflows": 0, "graceful_shutdown_timeout": timedelta(seconds=5), **worker_options}
        self._stack = AsyncExitStack()
        self._given_store, self._offload_over = store, offload_over
        self.server: EmbeddedServer
        self.store: str | Path
        self.temporal: Client
        self.client: AgentClient
        self.worker: Worker

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            server = self._given_server
            self.server = await stack.enter_async_context(EmbeddedServer()) if server is None else server
            self.store = self._given_store or stack.enter_context(TemporaryDirectory(prefix="waystation-"))
            blobs = self._options.get("blobs") or Blobs(self.store)
            self.temporal = await connect(
                address=self.server.address, store=self.store, offload_over=self._offload_over
            )
            self.client = AgentClient(self.temporal, task_queue=self._task_queue, blobs=blobs)
            registry = Registry.of(*self._agents)
            self.worker = create_worker(
                self.temporal,
                registry,
                models=Models(self._model),
                services=self.services,
                task_queue=self._task_queue,
                **{"blobs": blobs, **self._options},
            )
            await stack.enter_async_context(self.worker)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
