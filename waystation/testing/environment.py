"""A test environment: a Temporal server, a worker and a client."""

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

from anyio.from_thread import start_blocking_portal
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle

from waystation.activities import Models
from waystation.agents.base_agent import BaseAgent
from waystation.apps import App, Registry, discover
from waystation.client import AgentClient, Invocation, connect
from waystation.core.contract import ActivitySettings, Settings
from waystation.core.errors import InvalidConfiguration
from waystation.embedded import EmbeddedServer
from waystation.models import BaseLlm
from waystation.project_file import Project
from waystation.storage import OFFLOAD_OVER, Blobs
from waystation.testing.checks import assert_invocation_holds
from waystation.tools.resources import Lifespans
from waystation.tools.services import Services
from waystation.worker import announce_agents, create_worker
from waystation.worker.service_setup import create_temporary_services
from waystation.worker_keys import WorkerKeys

_queues = itertools.count()
_KEYS = WorkerKeys.generate()
_ACTIVITY = ActivitySettings(cancel_within=timedelta(seconds=1))
"""Tests should not wait 10 s for a cancellation, and their servers do not bill actions."""


class AgentEnvironment:
    """A Temporal server, a worker that serves the given agents, and a client.

    By default, the worker does not cache workflows, so every workflow task replays the history that precedes it.
    """

    def __init__(
        self,
        *agents: BaseAgent | App | Registry,
        model: BaseLlm | Literal["demo"] | None = None,
        services: Services | None = None,
        server: EmbeddedServer | None = None,
        store: str | Path | None = None,
        offload_over: int = OFFLOAD_OVER,
        task_queue: str = "waystation",
        **worker_options: Any,
    ) -> None:
        """Configure the environment, which starts when the `async with` block is entered.

        Args:
            agents: The agents or apps to serve, or a single registry of discovered agents.
            model: A model that replaces the model of every agent, or `demo` for the demo models of discovered agents.
            services: The worker's services. By default, artifacts and memories last as long as the environment.
            server: A running server to use, which is not stopped. By default, a new server is started.
            store: The store for payloads of at least `offload_over` bytes. By default, a temporary folder.
            offload_over: The size, in bytes, of the smallest payload that is moved to `store`.
            task_queue: The worker's task queue.
            worker_options: Additional arguments for `create_worker`, which override the environment's defaults.
        """
        registry = next((one for one in agents if isinstance(one, Registry)), None)
        self._agents = registry or [one for one in agents if not isinstance(one, Registry)]
        self._model, self._given_server = model, server
        self.services = services or create_temporary_services()
        self._task_queue = task_queue
        self._options = {
            "max_cached_workflows": 0,
            "graceful_shutdown_timeout": timedelta(seconds=5),
            "keys": _KEYS,
            "settings": Settings(allow_forks=True, activity=_ACTIVITY),
            **worker_options,
        }
        self._stack = AsyncExitStack()
        self._given_store, self._offload_over = store, offload_over

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
            registry = self._agents if isinstance(self._agents, Registry) else Registry.of(*self._agents)
            lifespans = Lifespans(registry.list_lifespans)
            self.worker = create_worker(
                self.temporal,
                registry,
                models=Models(self._model),
                services=replace(self.services, lifespans=lifespans),
                task_queue=self._task_queue,
                **{"blobs": blobs, **self._options},
            )
            await announce_agents(self.temporal, registry, task_queue=self._task_queue)
            await stack.enter_async_context(lifespans.opened())
            await stack.enter_async_context(self.worker)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def serving(
    *agents: BaseAgent | App | Registry,
    server: EmbeddedServer,
    store: str | Path,
    verify: bool | Callable[[Invocation], Awaitable[None]] = True,
    **options: Any,
) -> AsyncIterator[AgentEnvironment]:
    """Serve agents on a running server. At the end, check every started invocation, unless `verify` is False.

    Args:
        agents: The agents or apps to serve.
        server: A running server, which is not stopped.
        store: The store for large payloads. It must last as long as the server, because a later worker may continue
            invocations that an earlier worker started.
        verify: Whether to check every invocation with `assert_invocation_holds`, or a function to call with each
            invocation instead.
        options: Additional arguments for `AgentEnvironment`. By default, each environment has its own task queue.

    Raises:
        NotReplayable: The current code does not do what the history recorded.
        AssertionError: The history and the workflow differ.
    """
    queue = options.pop("task_queue", f"test-{os.getpid()}-{next(_queues)}")
    started = _StartRecorder()
    async with AgentEnvironment(*agents, server=server, store=store, task_queue=queue, **options) as env:
        config = env.temporal.config()
        config["interceptors"] = [started]
        env.client = AgentClient(Client(**config), task_queue=queue, blobs=env.client.blobs)
        yield env
        if verify:
            for workflow_id in started.ids:
                await (assert_invocation_holds if verify is True else verify)(env.client.invocation(workflow_id))


class _StartRecorder(Interceptor):
    """Records the IDs of the workflows that a client starts."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Return an interceptor that records each workflow ID before it starts the workflow."""
        ids = self.ids

        class RecordingInterceptor(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
                ids.append(input.id)
                return await super().start_workflow(input)

        return RecordingInterceptor(next)


def load_agents(project: Project | None) -> Registry:
    """Return the agents that a project file names.

    Raises:
        InvalidConfiguration: There is no project file, or it names no agents.
        WaystationError: An agent cannot be used.
    """
    folders = project.get("agents") if project else None
    if not folders:
        problem = "no agents are passed, and no project file with the key `agents` is in the test's folder or above it."
        raise InvalidConfiguration("waystation_serve", "", problem)
    registry, problems = discover(map(Path, folders))
    if problems:
        raise problems[0].error
    return registry


@contextlib.contextmanager
def shared_server() -> Iterator[EmbeddedServer]:
    """Run a server in another thread's event loop, because each test may have its own event loop."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(EmbeddedServer()) as server:
        yield server
