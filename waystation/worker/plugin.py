"""The Temporal plugin that serves agents, and a function that creates workers with it."""

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.plugin import SimplePlugin
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker, WorkerConfig

from waystation.activities import (
    AnswerVerifier,
    CacheInterceptor,
    CarryOver,
    Channels,
    Compactor,
    Keys,
    LinkSigner,
    LogCache,
    ModelCaller,
    Models,
    Notifier,
    ProofFactory,
    PushDelivery,
    ScopeKeeper,
    SessionHistories,
    TokenVerifier,
    ToolCaller,
    close_plugins,
    track_activity,
)
from waystation.agents import BaseAgent, LlmAgent, kind_of
from waystation.agents.toolbox import close_toolsets, tools_of, toolsets_of
from waystation.apps import App, Registry
from waystation.apps.registry import Root
from waystation.client import DETAILS, AgentDetails, AgentDirectory, SearchAttributeMonitor, Tools
from waystation.core import summary
from waystation.core.contract import TASK_QUEUE, Settings, ToolCallInput
from waystation.core.errors import AuthoringError, InvalidConfiguration
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import (
    ARCHIVE,
    ARCHIVE_SESSION,
    CHILD,
    COLLECT,
    DELIVER_EVENT,
    FLUSH_SCOPES,
    HELD_TOOL,
    MODEL,
    NOTIFY,
    PUSH,
    TAKE_OVER,
    VERIFY,
    EngineActivity,
)
from waystation.history import fetch_signal_times
from waystation.logs import core_listeners
from waystation.models.base_llm import name_of_model
from waystation.storage import Blobs, add_storage, offloading
from waystation.tools import AgentTool, Services
from waystation.tools.resources import LifespanFailed, Lifespans
from waystation.version import waystation_version
from waystation.worker.service_setup import create_lasting_services, create_store_ids, find_verified_policies, is_local
from waystation.worker.watchdog import Watchdog
from waystation.workflows.engine_activity import SettingsInterceptor
from waystation.workflows.event_delivery import AgentEventDelivery
from waystation.workflows.inbox import FIND_PROGRESS
from waystation.workflows.invocation import AgentInvocation
from waystation.workflows.ports import data_of, raw
from waystation.workflows.push_delivery import AgentPushDelivery
from waystation.workflows.scope import AgentScope
from waystation.workflows.session import AgentSession
from waystation.workflows.versioned import VERSIONED

if TYPE_CHECKING:
    from waystation.activities import Meters

log = structlog.get_logger("waystation.worker")

Activity = Callable[..., Any]


WORKFLOWS: list[type] = [AgentEventDelivery, AgentInvocation, AgentPushDelivery, AgentScope, AgentSession]


def _engine_activity(row: EngineActivity[Any], handler: Callable[[Any], Awaitable[bytes]]) -> Activity:
    @activity.defn(name=row.name)
    async def run(params: RawValue) -> RawValue:
        async with track_activity():
            return raw(await handler(row.input.model_validate_json(data_of(params.payload))))

    return run


def _tool_activity(handler: Callable[[ToolCallInput], Awaitable[bytes]]) -> Activity:
    @activity.defn(dynamic=True)
    async def call_tool(params: Sequence[RawValue]) -> RawValue:
        name = activity.info().activity_type
        if "." not in name:  # Not a tool. Another version may have this activity, with a similar input.
            raise ApplicationError(f"Unknown activity {name!r}. A worker with a different version may provide it.")
        try:
            parsed = ToolCallInput.model_validate_json(data_of(params[0].payload) if params else b"")
        except ValueError:
            raise ApplicationError(
                f"Unknown activity {name!r}. Its input is not a tool call.", non_retryable=True
            ) from None
        async with track_activity():
            return raw(await handler(parsed))

    return call_tool


def _progress_activity(sessions: SessionHistories) -> Activity:
    """Return the local activity that sessions wait for; see `workflows.inbox.Arrivals`."""

    @activity.defn(name=FIND_PROGRESS)
    async def find_progress(known: list[tuple[int, int]]) -> list[int]:
        return await sessions.find_progress(known) if known else []

    return find_progress


@activity.defn(dynamic=True)
async def _decline(_: Sequence[RawValue]) -> RawValue:
    """Decline a local activity in a worker without activities. The call then runs as an ordinary activity."""
    benign = ApplicationErrorCategory.BENIGN
    raise ApplicationError("This worker runs only workflows.", non_retryable=True, category=benign)


def _is_dynamic(function: Activity) -> bool:
    definition = activity._Definition.from_callable(function)  # the SDK shows it nowhere else
    return definition is not None and definition.name is None


REFRESH_S, TROUBLE_S = 60.0, 5.0
"""Average interval for checking whether the namespace still has the search attributes, and the shortest one, while the
server does not respond or Temporal's core logs warnings."""
SIGNAL_TIMES_LIMIT_S = 3.0
"""How long a workflow task may wait for the times of its signals. Without them, the signals count as late."""
MAX_ANNOUNCED_BYTES = 10_000
"""Maximum size of an announced list of tools. A larger one is left out; approvers then get no warning when a tool is
removed."""
MAX_DESCRIPTION = 300
"""Maximum number of characters of an agent's description to announce."""

WORKER_OPTIONS: Mapping[str, Any] = {
    # Limits memory use at little cost: a cached workflow takes 0.1 MB, and an evicted one resumes in 17 ms instead of
    # 13 ms. The least recently used are evicted first, so mostly those that wait for a person. Twice the default of
    # `Settings.concurrent_activities` is enough for the invocations that are running.
    "max_cached_workflows": 200,
    # After a worker crash, the next signal, update or query of a workflow that the worker had cached is delayed by this
    # long. The SDK's default is 10 s. A worker that is too busy to start a workflow task within this time loses the
    # task to any worker, which replays the workflow.
    "sticky_queue_schedule_to_start_timeout": timedelta(seconds=0.8),
    # With this value, five parallel tools take 22% less time than with the SDK's default of 3.
    "max_eager_activity_reservations_per_workflow_task": 10,
}
"""Options for `temporalio.worker.Worker` that suit agents better than the SDK's defaults. The plugin does not set them,
because they also apply to the user's own workflows."""


class WaystationPlugin(SimplePlugin):
    """Adds agents to a Temporal worker: workflows, activities, and a converter for large payloads.

    ```python
    plugin = WaystationPlugin(agents=[refund_agent])
    client = await Client.connect("localhost:7233", plugins=[plugin])
    async with Worker(client, task_queue="waystation", workflows=[Onboarding]):
        ...
    ```

    Workers that use this client then serve the agents in addition to their own workflows and activities, which run as
    they did without the plugin. When the last of these workers stops, the agents' tools, plugins and models are closed.
    They can be used again.
    """

    def __init__(
        self,
        agents: Registry | Sequence[BaseAgent | App],
        *,
        settings: Settings | None = None,
        models: Models | None = None,
        services: Services | None = None,
        blobs: Blobs | None = None,
        identity: TokenVerifier | None = None,
        channels: Channels | None = None,
        sign_link: LinkSigner | None = None,
        keys: Keys | None = None,
        workflows: bool = True,
        activities: bool = True,
        request_exit: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a plugin. Nothing is opened until a worker starts.

        Args:
            agents: Agents or apps, or a registry of discovered agents.
            settings: Stores, timeouts and limits.
            models: Resolves model names to models.
            services: Stores for artifacts, memories and credentials. They replace those in `settings.stores`.
            blobs: Store for large payloads and archived logs. It replaces the one in `settings.stores`.
            identity: Verifies the identity of approvers and requesters. Without it, no identity is verified.
            channels: Channels for notifying approvers.
            sign_link: Signs the links in notifications.
            keys: Keys that all workers of the namespace share. They authenticate approvals by verified approvers.
                Required for a worker that runs activities if a tool or an approval rule has such a policy and the
                server is not on this machine.
            workflows: Set to False for a worker that runs only models and tools.
            activities: Set to False for a worker that runs only workflows.
            request_exit: Called with 11 after a tool has blocked the event loop for `settings.event_loop_limit` and was
                interrupted, or with 12 if the process uses more memory than `settings.max_rss`. It should make the
                program stop its workers and then exit with this code. A tool that cannot be interrupted ends the
                process at once. Without `request_exit`, the worker only logs both cases.
            clock: Returns the time in seconds since 1970. Tests pass a clock that they set forward.
        """
        self._settings = settings or Settings()
        stores = self._settings.stores
        self._registry = agents if isinstance(agents, Registry) else Registry.of(*agents)
        self._models = models or Models()
        services = services or create_lasting_services(stores)
        lifespans = services.lifespans or Lifespans(self._registry.list_lifespans if activities else dict)
        self._services = replace(services, lifespans=lifespans)
        self._blobs = blobs or Blobs(stores.payloads)
        self._identity, self._channels, self._sign_link, self._keys = identity, channels, sign_link, keys
        self._workflows, self._activities = workflows, activities
        self._namespaces: dict[Client, _Namespace] = {}
        self._request_exit, self._clock = request_exit, clock
        self._workers: set[Worker] = set()
        self._watching = ExitStack()
        super().__init__(
            "waystation.WaystationPlugin",
            data_converter=self._converter,
            workflows=WORKFLOWS if workflows else [],
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add workflows, activities, interceptors and a workflow runner.

        Raises:
            InvalidConfiguration: The worker's client does not offload large payloads, the worker lacks keys, or it has
                a dynamic activity or another WaystationPlugin.
        """
        client = config["client"]
        plugins = [*client.config()["plugins"], *config.get("plugins", ())]
        if any(isinstance(other, WaystationPlugin) and other is not self for other in plugins):
            problem = (
                "has two WaystationPlugins: a worker uses the plugins of its client as well as its own. Keep one of "
                "them, with the agents of both."
            )
            raise InvalidConfiguration("The worker", "", problem)
        if any(isinstance(given, SettingsInterceptor) for given in config.get("interceptors", ())):
            return config  # the worker and its client both have this plugin
        config = super().configure_worker(config)
        if (deployment := config.get("deployment_config")) and deployment.use_worker_versioning:
            config["workflows"] = [VERSIONED.get(given, given) for given in config.get("workflows", ())]
        if client.data_converter.external_storage is None:
            # Without a payload store, anyone could block the worker by sending a reference that it cannot resolve.
            raise InvalidConfiguration(
                "The worker's client", "", "has no payload store. Connect it with `plugins=[WaystationPlugin(...)]`."
            )
        if dynamic := next(filter(_is_dynamic, config.get("activities") or ()), None):
            # A worker can have only one, and the tools of agents need it.
            problem = (
                f"cannot have the dynamic activity {getattr(dynamic, '__qualname__', dynamic)!r}, because agents use "
                "the only one that a worker can have. Run yours in a worker on another task queue, whose client does "
                "not have the plugin."
            )
            raise InvalidConfiguration("A worker that serves agents", "", problem)
        namespace = self._namespace(client)
        is_searchable = namespace.monitor.is_available
        signal_times = functools.partial(_fetch_signal_times, client, asyncio.get_running_loop())
        # Without a cache, the SDK may cancel local activities, and repeat them after the workflow task's timeout.
        is_cached = self._workflows and config.get("max_cached_workflows") != 0
        interceptors: list[Interceptor] = [
            SettingsInterceptor(self._settings.workflow, is_searchable, signal_times, is_cached=is_cached)
        ]
        logs = LogCache(client, self._blobs, clock=self._clock)
        scopes, forks = ScopeKeeper(client, logs), self._settings.allow_forks or self._settings.allow_overrides
        sessions = SessionHistories(client, self._blobs, scopes, logs=logs, forks=forks)
        if self._activities:
            self._check_keys(client)
            activities = self._create_activities(client, logs, scopes, sessions, namespace, quick_calls=is_cached)
            config["activities"] = [*(config.get("activities") or ()), *activities]
            # Only activities read the cache that this interceptor fills.
            interceptors.append(CacheInterceptor(logs))
        elif not config.get("activities"):
            # Without an activity, the SDK would fail workflows that have run quick tools in another worker.
            config["activities"], config["no_remote_activities"] = [_decline], True
        if self._workflows:
            config["activities"] = [*(config.get("activities") or ()), _progress_activity(sessions)]
        config["interceptors"] = [*(config.get("interceptors") or ()), *interceptors]
        return config

    def _check_keys(self, client: Client) -> None:
        if self._keys is not None or is_local(client):
            return
        if protected := next(find_verified_policies(self._registry), None):
            problem = (
                f"has no keys, although the server at {client.service_client.config.target_host} is not on this "
                f"machine: {protected} requires verified approvers. Create a key file with `waystation identity keys "
                "FILE`, and start all workers with --keys FILE, or in a program with `keys=WorkerKeys.read(FILE)`."
            )
            raise InvalidConfiguration("The worker", "", problem)

    def _namespace(self, client: Client) -> "_Namespace":
        return self._namespaces.setdefault(client, _Namespace(SearchAttributeMonitor(client), AgentDirectory(client)))

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Open the resources of the apps, run the worker, announce its agents, and watch the event loop.

        When the last worker of this plugin stops, close the tools, plugins, models and resources.

        Raises:
            LifespanFailed: A resource cannot be opened. The worker does not start.
        """
        if worker in self._workers:  # the worker and its client both have this plugin
            return await next(worker)
        self._workers.add(worker)  # before the first await: another worker may stop during it
        if len(self._workers) == 1:
            self._watching.enter_context(self._create_watchdog(worker.client))
        try:
            assert self._services.lifespans
            async with self._services.lifespans.opened():
                try:
                    await self._run_announced(worker, next)
                finally:
                    if self._workers == {worker}:
                        await self._close()
        except LifespanFailed:
            # `async with Worker(…)` waits for this event, which the SDK sets only for a worker that has started.
            worker._shutdown_complete_event.set()
            raise
        finally:
            self._workers.remove(worker)
            if not self._workers:
                self._watching.close()

    async def _run_announced(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        monitor, directory = self._namespace(worker.client)
        # A worker that runs only workflows serves no agent, whatever it was given.
        agents = list_agents(self._registry) if self._activities else {}
        announce = functools.partial(directory.announce, agents, task_queue=worker.task_queue)
        await monitor.refresh()
        await announce()
        loop, trouble = asyncio.get_running_loop(), asyncio.Event()

        def expect_trouble() -> None:
            loop.call_soon_threadsafe(trouble.set)

        refreshing = asyncio.create_task(_keep_refreshing(monitor, announce, trouble))
        core_listeners.append(expect_trouble)
        try:
            await next(worker)
        finally:
            core_listeners.remove(expect_trouble)
            refreshing.cancel()

    def _create_watchdog(self, client: Client) -> Watchdog:
        settings, request_exit = self._settings, self._request_exit
        limit = settings.event_loop_limit if request_exit else timedelta()
        return Watchdog(
            client,
            limit_s=limit.total_seconds(),
            max_rss=settings.max_rss,
            request_exit=request_exit or (lambda _code: None),
        )

    def _create_activities(
        self,
        client: Client,
        logs: LogCache,
        scopes: ScopeKeeper,
        sessions: SessionHistories,
        namespace: "_Namespace",
        *,
        quick_calls: bool,
    ) -> list[Activity]:
        limits, channels = self._settings.activity, self._channels or Channels({})
        notifier = Notifier(logs, channels, self._sign_link)
        proofs = ProofFactory(self._keys, logs, client, identity=self._identity, required=not is_local(client))
        meters = self._create_meters()
        model_caller = ModelCaller(
            self._registry,
            logs,
            sessions,
            self._models,
            search_attributes=namespace.monitor.is_available,
            services=self._services,
            scopes=scopes,
            notify=channels.default,
            notify_operators=channels.operators,
            endpoints=channels.list_endpoints,
            compactor=Compactor(self._models, limits=limits, meters=meters),
            limits=limits,
            proofs=proofs,
            stores=create_store_ids(self._blobs, self._services),
            is_announced=namespace.directory.is_announced,
            quick_calls=quick_calls,
            meters=meters,
        )
        parts: dict[str, Any] = {"services": self._services, "limits": limits, "proofs": proofs}
        tool_caller = ToolCaller(self._registry, logs, sessions, **parts)
        carry_over = CarryOver(
            client,
            self._registry,
            logs,
            self._blobs,
            proofs=proofs,
            forks=self._settings.allow_forks or self._settings.allow_overrides,
            overrides=self._settings.allow_overrides,
        )
        handlers: dict[EngineActivity[Any], Callable[[Any], Awaitable[bytes]]] = {
            MODEL: model_caller.call,
            ARCHIVE: carry_over.archive,
            CHILD: carry_over.child_outcome,
            TAKE_OVER: carry_over.take_over,
            NOTIFY: notifier.notify,
            DELIVER_EVENT: notifier.deliver_event,
            PUSH: PushDelivery(client, self._identity).push,
            VERIFY: AnswerVerifier(self._registry, logs, sessions, **parts).verify,
            HELD_TOOL: tool_caller.call,
            FLUSH_SCOPES: scopes.apply,
            COLLECT: sessions.collect,
            ARCHIVE_SESSION: sessions.archive,
        }
        return [_tool_activity(tool_caller.call), *(_engine_activity(*row) for row in handlers.items())]

    def _create_meters(self) -> "Meters | None":
        if not self._settings.quotas:
            return None
        from waystation.activities import Meters  # not loaded by workers without quotas

        return Meters(self._settings.quotas)

    def _converter(self, converter: DataConverter | None) -> DataConverter:
        converter = converter or DataConverter.default
        if converter.external_storage is not None:
            return converter
        return offloading(self._blobs, over=self._settings.stores.offload_over, converter=converter)

    async def _close(self) -> None:
        roots = self._registry.roots.values()
        await close_plugins([plugin for root in roots for plugin in root.plugins])
        await close_toolsets([root.agent for root in roots])
        await self._models.close()


class _Namespace(NamedTuple):
    """The state of a namespace that the workers of one client share."""

    monitor: SearchAttributeMonitor
    directory: AgentDirectory


async def _keep_refreshing(
    monitor: SearchAttributeMonitor,
    announce: Callable[..., Awaitable[None]],
    trouble: asyncio.Event,
    uniform: Callable[[float, float], float] = random.uniform,
) -> None:
    """Check the namespace at intervals, because its server may be replaced by one with an empty database.

    Check at once if `trouble` is set: the server may be away, or may refuse a search attribute.
    """
    while True:
        await asyncio.sleep(TROUBLE_S)
        if not monitor.is_interrupted:
            with suppress(TimeoutError):
                # Workers that start at the same time should not check at the same time.
                async with asyncio.timeout(REFRESH_S * uniform(0.8, 1.2) - TROUBLE_S):
                    await trouble.wait()
        trouble.clear()
        await monitor.refresh()
        await announce(again=True)


async def announce_agents(
    client: Client, agents: Registry | Sequence[BaseAgent | App], *, task_queue: str = TASK_QUEUE
) -> None:
    """Announce the agents of a worker, so that clients can start them. If this fails, log a warning.

    A worker does this itself when it starts. Call this function before that if clients start at the same time.
    """
    registry = agents if isinstance(agents, Registry) else Registry.of(*agents)
    await AgentDirectory(client).announce(list_agents(registry), task_queue=task_queue)


def list_agents(registry: Registry) -> dict[str, Tools]:
    """Return what a worker announces about its root agents, by name."""
    return {name: _list_tools(root) for name, root in registry.roots.items()}


def _list_tools(root: Root) -> Tools:
    """Map each agent in a tree to its tool names, or to None if it has toolsets, which list tools only at run time.

    The mapping is empty if an agent's tools are invalid, or if it would exceed `MAX_ANNOUNCED_BYTES`. The details of
    the agents are left out if they would exceed it.
    """
    agents = [agent for agent in root.tree.values() if isinstance(agent, LlmAgent)]
    try:
        tools = {agent.name: None if toolsets_of(agent) else sorted(tools_of(agent)) for agent in agents}
    except AuthoringError:  # the first model call reports it
        return {}
    detailed: Tools = {**tools, DETAILS: {agent.name: _describe(agent) for agent in root.tree.values()}}
    fitting = (mapping for mapping in (detailed, tools) if len(encode(mapping)) <= MAX_ANNOUNCED_BYTES)
    return next(fitting, {})


def _describe(agent: BaseAgent) -> JsonObject:
    details = AgentDetails(
        kind=kind_of(agent) or "",
        description=summary.clip(agent.description, MAX_DESCRIPTION),
        model=name_of_model(agent.declared_model) if isinstance(agent, LlmAgent) else "",
        sub_agents=tuple(below.name for below in agent.sub_agents),
        called=tuple(tool.agent.name for tool in getattr(agent, "tools", ()) if isinstance(tool, AgentTool)),
    )
    return details.model_dump(mode="json", exclude_defaults=True)


def _fetch_signal_times(client: Client, loop: asyncio.AbstractEventLoop, workflow_id: str, run_id: str) -> list[float]:
    """Return when the signals of a run arrived, or an empty list if unknown. Called in workflow task threads."""
    fetched = asyncio.run_coroutine_threadsafe(fetch_signal_times(client, workflow_id, run_id), loop)
    try:
        return fetched.result(SIGNAL_TIMES_LIMIT_S)
    except (RPCError, TimeoutError) as error:
        log.warning("signal_times.unknown", invocation_id=workflow_id, problem=type(error).__name__)
        return []


def _set_task_limit(worker: Worker, limit: timedelta) -> None:
    """Replace the SDK's time limit of 2 s for workflow tasks, which no option can change. Debug mode has no limit."""
    workflows: Any = getattr(worker, "_workflow_worker", None)
    if getattr(workflows, "_deadlock_timeout_seconds", None) is not None:
        workflows._deadlock_timeout_seconds = limit.total_seconds()


def create_worker(
    client: Client,
    agents: Registry | Sequence[BaseAgent | App],
    *,
    task_queue: str = TASK_QUEUE,
    settings: Settings | None = None,
    models: Models | None = None,
    services: Services | None = None,
    blobs: Blobs | None = None,
    identity: TokenVerifier | None = None,
    channels: Channels | None = None,
    sign_link: LinkSigner | None = None,
    keys: Keys | None = None,
    workflows: bool = True,
    activities: bool = True,
    request_exit: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> Worker:
    """Return a worker that serves only agents.

    See `WaystationPlugin` for the parameters that are not listed here.

    Args:
        client: Any client. If it has a `WaystationPlugin`, the worker does not serve that plugin's agents.
        agents: Agents or apps, or a registry of discovered agents.
        task_queue: The task queue to poll.
        options: Additional options for `temporalio.worker.Worker`. They override `WORKER_OPTIONS`. A `tuner` replaces
            `settings.concurrent_activities`.
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
        keys=keys,
        workflows=workflows,
        activities=activities,
        request_exit=request_exit,
        clock=clock,
    )
    worker = Worker(
        add_storage(_without_plugin(client), blobs, over=settings.stores.offload_over),
        task_queue=task_queue,
        **_complete_options(options, settings) | {"plugins": [plugin, *options.get("plugins", ())]},
    )
    _set_task_limit(worker, settings.workflow_task_limit)
    return worker


def _complete_options(options: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the options of `temporalio.worker.Worker`, with defaults for those that are missing."""
    defaults = {**WORKER_OPTIONS, "graceful_shutdown_timeout": settings.drain}
    if not options.get("deployment_config"):
        # No user code runs in workflows. The SDK's default build ID, a hash, takes longer to compute and to record.
        defaults["build_id"] = waystation_version()
    if not options.get("tuner"):  # the SDK accepts only one of them
        defaults["max_concurrent_activities"] = settings.concurrent_activities
    return {**defaults, **options}


def _without_plugin(client: Client) -> Client:
    """Return a client that uses the same connection, but whose workers do not serve the agents of its plugin."""
    config = client.config()
    others = [plugin for plugin in config["plugins"] if not isinstance(plugin, WaystationPlugin)]
    return Client(**config | {"plugins": others}) if len(others) < len(config["plugins"]) else client
