"""A test environment: a Temporal server, a worker and a client."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

from anyio.from_thread import start_blocking_portal
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    ScheduleActionExecutionStartWorkflow,
    ScheduleHandle,
    StartWorkflowInput,
    StartWorkflowUpdateWithStartInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)

from waystation.activities import Models
from waystation.agents.base_agent import BaseAgent
from waystation.apps import App, Registry, discover
from waystation.client import AgentClient, Invocation, connect
from waystation.core.contract import WORKFLOW, ActivitySettings, Settings
from waystation.core.errors import InvalidConfiguration
from waystation.embedded import EmbeddedServer
from waystation.models import BaseLlm
from waystation.project_file import Project
from waystation.storage import OFFLOAD_OVER, Blobs
from waystation.testing.checks import assert_invocation_holds
from waystation.testing.time_skipping import POLL_S, SETTLE_LIMIT_S, SKIPS_TIME, Clock, TimeSkipper
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
        clock: Clock | None = None,
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
            clock: The clock that `skip` sets forward, which `People` may share. By default, a new one.
            worker_options: Additional arguments for `create_worker`, which override the environment's defaults.
        """
        registry = next((one for one in agents if isinstance(one, Registry)), None)
        self._agents = registry or [one for one in agents if not isinstance(one, Registry)]
        self._given_server = server
        self.services = services or create_temporary_services()
        self._task_queue, self.clock = task_queue, clock or Clock()
        self._options = {
            "max_cached_workflows": 0,
            "graceful_shutdown_timeout": timedelta(seconds=5),
            "keys": _KEYS,
            "settings": Settings(allow_forks=True, activity=_ACTIVITY),
            "models": Models(model),
            "clock": self.clock,
            **worker_options,
        }
        self._stack = AsyncExitStack()
        self._given_store, self._offload_over = store, offload_over
        self.started: dict[str, str] = {}
        """The types of the workflows that `client` has started, by ID."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            server = self._given_server
            own = EmbeddedServer(dynamic_config=SKIPS_TIME)
            self.server = await stack.enter_async_context(own) if server is None else server
            self.store = self._given_store or stack.enter_context(TemporaryDirectory(prefix="waystation-"))
            blobs = self._options.get("blobs") or Blobs(self.store)
            self.temporal = await connect(
                address=self.server.address, store=self.store, offload_over=self._offload_over
            )
            config = self.temporal.config()
            config["interceptors"] = [*config["interceptors"], _StartRecorder(self.started)]
            self.client = AgentClient(
                Client(**config), task_queue=self._task_queue, blobs=blobs, artifacts=self.services.artifacts
            )
            self._skipper = TimeSkipper(
                self.temporal,
                self.clock,
                task_queue=self._task_queue,
                started=self.started.keys(),
                is_served=lambda: self.worker.is_running,
            )
            registry = self._agents if isinstance(self._agents, Registry) else Registry.of(*self._agents)
            lifespans = Lifespans(registry.list_lifespans)
            self.worker = create_worker(
                self.temporal,
                registry,
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

    async def skip(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Skip time for the clock, and for all invocations and sessions of the task queue.

        Deadlines, reminders and escalations that fall into this time take effect. First wait until every invocation
        waits for a person, and afterward until the effects are recorded. While an agent waits for an agent that it
        called, its own time does not pass. Schedules do not move: trigger or backfill them.

        Raises:
            ValueError: The time is not positive.
            TimeNotSkipped: An invocation does not come to wait, the worker does not run, or the server cannot skip
                time.
        """
        await self._skipper.skip(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))

    async def scheduled(self, schedule: ScheduleHandle, count: int = 1) -> list[Invocation]:
        """Wait until a schedule that was triggered or backfilled has started at least `count` invocations.

        Return the latest of them, oldest first.

        Raises:
            AssertionError: The schedule has not started so many after half a minute.
        """
        ends = time.monotonic() + SETTLE_LIMIT_S
        while len(actions := (await schedule.describe()).info.recent_actions) < count:
            assert time.monotonic() < ends, (
                f"The schedule {schedule.id!r} has started {len(actions)} of {count} invocations. If one is open, "
                "start the next one with `overlap=ScheduleOverlapPolicy.ALLOW_ALL`."
            )
            await asyncio.sleep(POLL_S)
        return [
            self.client.invocation(start.workflow_id)
            for each in actions[-count:]
            if isinstance(start := each.action, ScheduleActionExecutionStartWorkflow)
        ]


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
    async with AgentEnvironment(*agents, server=server, store=store, task_queue=queue, **options) as env:
        yield env
        if verify:
            for workflow_id in [id for id, kind in env.started.items() if kind == WORKFLOW]:
                await (assert_invocation_holds if verify is True else verify)(env.client.invocation(workflow_id))


class _StartRecorder(Interceptor):
    """Records the IDs and types of the workflows that a client starts."""

    def __init__(self, started: dict[str, str]) -> None:
        self._started = started

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Return an interceptor that records each workflow before it starts the workflow."""
        started = self._started

        class RecordingInterceptor(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
                started[input.id] = input.workflow
                return await super().start_workflow(input)

            async def start_update_with_start_workflow(
                self, input: StartWorkflowUpdateWithStartInput
            ) -> WorkflowUpdateHandle[Any]:
                started[input.start_workflow_input.id] = input.start_workflow_input.workflow
                return await super().start_update_with_start_workflow(input)

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
    server = EmbeddedServer(dynamic_config=SKIPS_TIME)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(server):
        yield server
