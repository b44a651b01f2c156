"""Agents as a Temporal plugin: what makes a worker serve them, whoever made the worker."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    Interceptor,
    Worker,
    WorkerConfig,
)

from waystation.activities.approval_checks import Reviewer, Verifies
from waystation.activities.callbacks import close_plugins
from waystation.activities.carry_over import CarryOver
from waystation.activities.log_cache import HandOver, LogCache
from waystation.activities.model_call.compaction import Compactor
from waystation.activities.model_call.model_caller import ModelCaller
from waystation.activities.model_choice import Models
from waystation.activities.notifications import Channels, Notifier, SignsLinks
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.activities.session_history import Sessions
from waystation.activities.tool_caller import ToolCaller
from waystation.agents.base_agent import BaseAgent
from waystation.agents.registry import Registry
from waystation.apps import App
from waystation.client import has_search_attributes
from waystation.core import (
    ARCHIVE,
    ARCHIVE_SESSION,
    CHILD,
    COLLECT,
    FLUSH_SCOPES,
    MODEL,
    NOTIFY,
    TAKE_OVER,
    TASK_QUEUE,
    VERIFY,
    EngineActivity,
    InvalidConfiguration,
    Settings,
    ToolCallInput,
)
from waystation.storage import Blobs
from waystation.storage.driver import offloading, with_storage
from waystation.tools.services import Services
from waystation.tools.toolbox import close_toolsets
from waystation.worker.services import lasting_services
from waystation.workflows.engine_activity import SettingsInterceptor
from waystation.workflows.invocation import AgentInvocation
from waystation.workflows.ports import data_of, raw
from waystation.workflows.scope import AgentScope
from waystation.workflows.session import AgentSession

Activity = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Collaborators:
    """What the activities use besides Temporal."""

    registry: Registry
    models: Models
    services: Services
    blobs: Blobs
    identity: Verifies | None = None
    """What verifies the identity of approvers; None: no token proves anything."""
    channels: Channels | None = None
    """How approvers are notified."""
    sign_link: SignsLinks | None = None
    """What signs the links in notifications."""


class EngineActivities:
    """The activities of one worker, over one client."""

    def __init__(self, client: Client, use: Collaborators, settings: Settings) -> None:
        self._client = client
        self.logs = LogCache(client, use.blobs)
        scopes = ScopeKeeper(client, self.logs)
        sessions = Sessions(client, use.blobs, scopes)
        limits = settings.activity
        self._models = ModelCaller(
            use.registry,
            self.logs,
            sessions,
            use.models,
            services=use.services,
            scopes=scopes,
            notify=use.channels.default if use.channels else (),
            compactor=Compactor(use.models, limits=limits),
            limits=limits,
        )
        self._tools = ToolCaller(use.registry, self.logs, sessions, services=use.services, limits=limits)
        reviewer = Reviewer(
            use.registry, self.logs, sessions, services=use.services, identity=use.identity, limits=limits
        )
        carry_over = CarryOver(client, use.registry, self.logs, use.blobs, overrides=settings.allow_overrides)
        self.served: Sequence[Activity] = [
            _engine_activity(MODEL, self._models.call),
            _engine_activity(ARCHIVE, carry_over.archive),
            _engine_activity(CHILD, carry_over.child_outcome),
            _engine_activity(TAKE_OVER, carry_over.take_over),
            _engine_activity(NOTIFY, Notifier(self.logs, use.channels, use.sign_link).notify),
            _engine_activity(VERIFY, reviewer.review),
            _tool_activity(self._tools.call),
            _engine_activity(FLUSH_SCOPES, scopes.apply),
            _engine_activity(COLLECT, sessions.collect),
            _engine_activity(ARCHIVE_SESSION, sessions.archive),
        ]

    async def start(self) -> None:
        """Find out what the namespace has. Called when the worker starts, before it polls."""
        self._models.search_attributes = await has_search_attributes(self._client)


def _engine_activity(row: EngineActivity[Any], handler: Callable[[Any], Awaitable[bytes]]) -> Activity:
    @activity.defn(name=row.name)
    async def run(params: RawValue) -> RawValue:
        return raw(await handler(row.input.model_validate_json(data_of(params.payload))))

    return run


def _tool_activity(handler: Callable[[ToolCallInput], Awaitable[bytes]]) -> Activity:
    @activity.defn(dynamic=True)
    async def call_tool(params: Sequence[RawValue]) -> RawValue:
        name = activity.info().activity_type
        if "." not in name:  # as tools' are; others are of workers of another version, whose input may look like one
            raise ApplicationError(f"No activity is named {name!r} here; a worker of another version may have it.")
        try:
            parsed = ToolCallInput.model_validate_json(data_of(params[0].payload) if params else b"")
        except ValueError:
            text = f"No activity is named {name!r} here, and its input is not that of a tool call."
            raise ApplicationError(text, non_retryable=True) from None
        return raw(await handler(parsed))

    return call_tool


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
