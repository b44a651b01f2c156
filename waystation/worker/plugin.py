"""Agents as a Temporal plugin: what makes a worker serve them, whoever made the worker."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    Interceptor,
    Worker,
    WorkerConfig,
)

from waystation.activities import Channels, HandOver, Models, SignsLinks, Verifies, close_plugins
from waystation.agents.base_agent import BaseAgent
from waystation.agents.registry import Registry
from waystation.apps import App
from waystation.core import TASK_QUEUE, InvalidConfiguration, Settings
from waystation.storage import Blobs, offloading, with_storage
from waystation.tools.services import Services
from waystation.tools.toolbox import close_toolsets
from waystation.worker.engine_activities import Collaborators, EngineActivities
from waystation.worker.services import lasting_services
from waystation.workflows.engine_activity import SettingsInterceptor
from waystation.workflows.invocation import AgentInvocation
from waystation.workflows.scope import AgentScope
from waystation.workflows.session import AgentSession

HEARTBEAT_THROTTLE = timedelta(milliseconds=100)
"""Bounds the delay of streamed text, and of the cancellation of a running tool. Activities heartbeat once a
second unless they have news."""

WORKER_OPTIONS: Mapping[str, Any] = {
    # An invocation that waits and was evicted wakes in 17 ms instead of 13: the limit costs little and bounds memory.
    "max_cached_workflows": 1_000,
    # After a crash the next signal, update or query of a cached workflow waits this long; the SDK's default is 10 s.
    "sticky_queue_schedule_to_start_timeout": timedelta(seconds=1),
    # Five parallel tools take 0.78 of the time that they take with the SDK's default of 3.
    "max_eager_activity_reservations_per_workflow_task": 10,
    "max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
    "default_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
}
"""Options of `temporalio.worker.Worker` that suit agents better than the SDK's defaults; a plugin cannot set them."""


class WaystationPlugin(SimplePlugin):
    """Adds agents to a Temporal worker: their workflows, activities and the converter for large payloads.

    ```python
    plugin = WaystationPlugin(agents=[refund_agent])
    client = await Client.connect("localhost:7233", plugins=[plugin])
    async with Worker(client, task_queue="waystation", **WORKER_OPTIONS):
        ...
    ```

    A worker of the client then serves the agents beside the workflows and activities that it is given. Agents' tools,
    plugins and models are closed when its last worker stops; they can be used again.
    """

    def __init__(
        self,
        agents: Registry | Sequence[BaseAgent | App],
        *,
        settings: Settings | None = None,
        models: Models | None = None,
        services: Services | None = None,
        blobs: Blobs | None = None,
        identity: Verifies | None = None,
        channels: Channels | None = None,
        sign_link: SignsLinks | None = None,
        workflows: bool = True,
        activities: bool = True,
    ) -> None:
        """Nothing is opened before a worker starts.

        Args:
            agents: The agents or apps, or a registry of discovered ones.
            settings: Stores, timeouts, limits.
            models: How model names become models.
            services: Where artifacts, memories and credentials are stored, instead of what `settings.stores` says.
            blobs: Where large payloads and archived logs are stored, instead of what `settings.stores` says.
            identity: What verifies the identity of approvers.
            channels: How approvers are notified.
            sign_link: What signs the links in notifications.
            workflows: False for a worker that only runs models and tools.
            activities: False for a worker that only runs workflows.
        """
        self._settings = settings or Settings()
        stores = self._settings.stores
        self._use = Collaborators(
            registry=agents if isinstance(agents, Registry) else Registry.of(*agents),
            models=models or Models(),
            services=services or lasting_services(stores),
            blobs=blobs or Blobs(stores.payloads),
            identity=identity,
            channels=channels,
            sign_link=sign_link,
        )
        self._workflows, self._activities = workflows, activities
        self._engines: list[EngineActivities] = []
        self._running = 0
        super().__init__(
            "waystation.WaystationPlugin",
            data_converter=self._converter,
            workflows=[AgentInvocation, AgentScope, AgentSession] if workflows else [],
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add workflows, activities and interceptors.

        Raises:
            InvalidConfiguration: The worker's client does not offload large payloads.
        """
        config = super().configure_worker(config)
        client = config["client"]
        if client.data_converter.external_storage is None:
            # A reference that a stranger sends would block a worker that cannot resolve it.
            raise InvalidConfiguration(
                "The worker's client", "", "has no payload store; connect it with `plugins=[WaystationPlugin(...)]`."
            )
        interceptors: list[Interceptor] = [SettingsInterceptor(self._settings.workflow)]
        if self._activities:
            engine = EngineActivities(client, self._use, self._settings)
            self._engines.append(engine)
            config["activities"] = [*(config.get("activities") or ()), *engine.served]
            # Without activities a process would store what nothing reads.
            interceptors.append(HandOver(engine.logs))
        config["interceptors"] = [*(config.get("interceptors") or ()), *interceptors]
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Run the worker; afterwards close what its agents hold open."""
        await asyncio.gather(*(engine.start() for engine in self._engines))
        self._running += 1
        try:
            await next(worker)
        finally:
            self._running -= 1
            if not self._running:
                await self._close()

    def _converter(self, converter: DataConverter | None) -> DataConverter:
        converter = converter or DataConverter.default
        if converter.external_storage is not None:
            return converter
        return offloading(self._use.blobs, over=self._settings.stores.offload_over, converter=converter)

    async def _close(self) -> None:
        roots = self._use.registry.roots.values()
        await close_plugins([plugin for root in roots for plugin in root.plugins])
        await close_toolsets([root.agent for root in roots])
        await self._use.models.close()


def create_worker(
    client: Client,
    agents: Registry | Sequence[BaseAgent | App],
    *,
    task_queue: str = TASK_QUEUE,
    settings: Settings | None = None,
    models: Models | None = None,
    services: Services | None = None,
    blobs: Blobs | None = None,
    identity: Verifies | None = None,
    channels: Channels | None = None,
    sign_link: SignsLinks | None = None,
    workflows: bool = True,
    activities: bool = True,
    **options: Any,
) -> Worker:
    """Return a worker that serves only agents, over any client.

    `options` are further ones of `temporalio.worker.Worker`; the others are those of `WaystationPlugin`.
    """
    settings = settings or Settings()
    blobs = blobs or Blobs(settings.stores.payloads)
    plugin = WaystationPlugin(
        agents,
        settings=settings,
        models=models,
        services=services,
        blobs=blobs,
        identity=identity,
        channels=channels,
        sign_link=sign_link,
        workflows=workflows,
        activities=activities,
    )
    defaults = {
        **WORKER_OPTIONS,
        "max_concurrent_activities": settings.concurrent_activities,
        "graceful_shutdown_timeout": settings.drain,
    }
    client = with_storage(client, blobs, over=settings.stores.offload_over)
    return Worker(client, task_queue=task_queue, plugins=[plugin], **{**defaults, **options})
