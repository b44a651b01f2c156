"""A worker process: find agents, connect, register, serve, and drain on SIGTERM.

python worker.py --agents examples                 serve the agents of a folder
python worker.py --embedded --agents examples      the same, with a Temporal server of its own
python worker.py check --agents examples           only look for mistakes; exit code 1 when there are any

Exit codes: 0 after a stop that was asked for, 1 when there is a mistake or nothing can be served, 2 for wrong options.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from waystation.activities.archive import Archiver
from waystation.activities.call_model import ModelCaller
from waystation.activities.call_tool import ToolCaller
from waystation.activities.channels import Channels, channels_of
from waystation.activities.child_outcome import ChildWatcher
from waystation.activities.fork import Forker
from waystation.activities.hooks import close_plugins
from waystation.activities.identity import SignsLinks, Verifies
from waystation.activities.model_choice import DEMO, Models, has_key
from waystation.activities.notify import Notifier
from waystation.activities.review import Reviewer
from waystation.activities.scopes import ScopeKeeper
from waystation.activities.sessions import Sessions
from waystation.activities.view import HandOver, Views
from waystation.agents.registry import Problem, Registry, discover
from waystation.client import connect, connection_problem, has_search_attributes
from waystation.core.continued import ArchiveInput, ChildInput
from waystation.core.errors import WaystationError
from waystation.core.fork import TAKE_OVER_ACTIVITY
from waystation.core.model_call import ModelCallInput, Position
from waystation.core.notice import NOTIFY_ACTIVITY, NotifyInput
from waystation.core.review import REVIEW_ACTIVITY, ReviewInput
from waystation.core.tool_call import ToolCallInput
from waystation.core.wire import ARCHIVE_ACTIVITY, CHILD_ACTIVITY, MODEL_ACTIVITY, TASK_QUEUE
from waystation.logs import configure_logs
from waystation.standard_streams import open_standard_streams
from waystation.storage import Blobs
from waystation.storage.driver import OFFLOAD_OVER, with_storage
from waystation.tools.services import Services
from waystation.tools.toolbox import close_toolsets
from waystation.worker.identity import identity_of, links_of
from waystation.worker.model_check import foreign_names, unanswered
from waystation.worker.options import DRAIN, parser
from waystation.worker.policy_check import lacking
from waystation.worker.services import check_places, kept_services
from waystation.workflows.invocation import AgentInvocation
from waystation.workflows.ports import data_of, raw
from waystation.workflows.scope import AgentScope
from waystation.workflows.session import AgentSession

log = structlog.get_logger("waystation.worker")

ACTIVITIES = 100
"""How many models and tools run at a time; so many threads, too, because each sync tool keeps one while it runs."""
TOOL_THREADS = "tool"
ABANDON_AFTER_S = 0.5
"""How long threads may take to end once no tool is waited for."""
HEARTBEAT_THROTTLE = timedelta(milliseconds=100)
"""Bounds how late a reader hears of new text of a model, and a running tool of its cancellation. Activities beat once a
second all the same unless they have something to tell."""

OPTIONS: Mapping[str, Any] = {
    # No author code enters a workflow, so the sandbox would guard only code that the tests replay in it.
    "workflow_runner": UnsandboxedWorkflowRunner(),
    # A parked invocation that is evicted wakes in 17 ms instead of 13: the bound costs little and keeps memory flat.
    "max_cached_workflows": 1_000,
    # After a crash the next signal, update or query of a cached workflow waits this long; the SDK's default is 10 s.
    "sticky_queue_schedule_to_start_timeout": timedelta(seconds=1),
    # Five parallel tools take 0.78 of the time that they take with the SDK's default of 3.
    "max_eager_activity_reservations_per_workflow_task": 10,
    "max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
    "default_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
    "max_concurrent_activities": ACTIVITIES,
    "graceful_shutdown_timeout": DRAIN,
}
"""How a worker of ours differs from one with the SDK's defaults, whatever it serves."""


async def create_worker(
    client: Client,
    registry: Registry,
    *,
    models: Models | None = None,
    services: Services | None = None,
    identity: Verifies | None = None,
    channels: Channels | None = None,
    sign_link: SignsLinks | None = None,
    blobs: Blobs | None = None,
    offload_over: int = OFFLOAD_OVER,
    task_queue: str = TASK_QUEUE,
    workflows: bool = True,
    activities: bool = True,
    overrides: bool = False,
    **options: Any,
) -> Worker:
    """Return a worker that serves the agents of `registry`.

    Args:
        client: Connected to the namespace to serve.
        registry: The agents.
        models: How model names become models.
        services: Where artifacts, memories and credentials are kept; by default in the folder `.waystation`.
        identity: What verifies who answers; without it no token proves anything.
        channels: How people are told that something waits.
        sign_link: What signs the links that they are told.
        blobs: Where large payloads and long logs are kept; by default as `Blobs` says. Clients need the same.
        offload_over: The size, in bytes, from which payloads are kept there, unless the client offloads already.
        task_queue: What to poll.
        workflows: Whether to serve workflows; False for a worker that only runs models and tools.
        activities: Whether to run models and tools; False for a worker that only serves workflows.
        overrides: Whether forks may bring an instruction and a model; for development.
        options: Any further option of `temporalio.worker.Worker`.
    """
    blobs = blobs or Blobs()
    # Also for a client without one: a reference that a stranger sends would stick a worker that has no storage.
    client = with_storage(client, blobs, over=offload_over)
    views = Views(client, blobs)
    searchable = await has_search_attributes(client) if activities else False
    services = services or kept_services()
    scopes = ScopeKeeper(client, views)
    sessions = Sessions(client, blobs, scopes)
    model_caller = ModelCaller(
        registry,
        views,
        sessions,
        models or Models(),
        search_attributes=searchable,
        services=services,
        scopes=scopes,
        notify=channels.default if channels else (),
    )
    tool_caller = ToolCaller(registry, views, sessions, services=services)

    @activity.defn(name=MODEL_ACTIVITY)
    async def call_model(given: RawValue) -> RawValue:
        return raw(await model_caller.call(ModelCallInput.model_validate_json(data_of(given.payload))))

    archiver, child_watcher = Archiver(client, views, blobs), ChildWatcher(client)

    @activity.defn(name=ARCHIVE_ACTIVITY)
    async def archive(given: RawValue) -> RawValue:
        return raw(await archiver.archive(ArchiveInput.model_validate_json(data_of(given.payload))))

    @activity.defn(name=CHILD_ACTIVITY)
    async def child_outcome(given: RawValue) -> RawValue:
        return raw(await child_watcher.outcome(ChildInput.model_validate_json(data_of(given.payload))))

    forker = Forker(client, registry, views, blobs, overrides=overrides)

    @activity.defn(name=TAKE_OVER_ACTIVITY)
    async def take_over(given: RawValue) -> RawValue:
        return raw(await forker.take_over(Position.model_validate_json(data_of(given.payload))))

    notifier = Notifier(views, channels, sign_link)

    @activity.defn(name=NOTIFY_ACTIVITY)
    async def notify(given: RawValue) -> RawValue:
        return raw(await notifier.notify(NotifyInput.model_validate_json(data_of(given.payload))))

    reviewer = Reviewer(registry, views, sessions, services=services, identity=identity)

    @activity.defn(name=REVIEW_ACTIVITY)
    async def review_answer(given: RawValue) -> RawValue:
        return raw(await reviewer.review(ReviewInput.model_validate_json(data_of(given.payload))))

    @activity.defn(dynamic=True)
    async def call_tool(given: Sequence[RawValue]) -> RawValue:
        name = activity.info().activity_type
        if "." not in name:  # as tools' are; others are of workers of another version, whose input may look like one
            raise ApplicationError(f"No activity is named {name!r} here; a worker of another version may have it.")
        try:
            parsed = ToolCallInput.model_validate_json(data_of(given[0].payload) if given else b"")
        except ValueError:
            text = f"No activity is named {name!r} here, and its input is not that of a tool call."
            raise ApplicationError(text, non_retryable=True) from None
        return raw(await tool_caller.call(parsed))

    served = [call_model, call_tool, archive, child_outcome, review_answer, notify, take_over, scopes.apply]
    served += sessions.activities
    return Worker(
        client,
        **{
            "task_queue": task_queue,
            "workflows": [AgentInvocation, AgentScope, AgentSession] if workflows else [],
            "activities": served if activities else [],
            **OPTIONS,
            **options,
            # Without activities of its own a process would keep what nobody asks for.
            "interceptors": [*options.get("interceptors", ()), *([HandOver(views)] if activities else ())],
        },
    )


def check(folders: Sequence[Path], model: str | None = None) -> tuple[Registry, list[Problem]]:
    """Find the agents in `folders`, and every mistake in them.

    `model` is what takes the place of all models: `demo`, or nothing.
    """
    registry, problems = discover(folders)
    named = () if model == DEMO else foreign_names(registry)
    return registry, [*problems, *named]


class CannotServe(WaystationError):
    """There is nothing to serve; the message says what to change."""


async def serve(
    options: argparse.Namespace, registry: Registry, identity: Verifies | None, channels: Channels | None
) -> None:
    """Serve until SIGTERM or SIGINT, then let running tools finish.

    Raises:
        CannotServe: Temporal or its namespace is not there.
        EmbeddedServerError: The server of our own did not start.
        StoreFailed: Artifacts cannot be kept where they should.
        CredentialStoreError: Nor credentials.
    """
    services = kept_services(artifacts=options.artifacts, memory=options.memory, credentials=options.credentials)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    # The loop's own pool may have as few as six threads; every further sync tool would wait and look as if it ran.
    threads = ThreadPoolExecutor(ACTIVITIES, thread_name_prefix=TOOL_THREADS)
    loop.set_default_executor(threads)
    async with AsyncExitStack() as stack:
        address = options.address
        if options.embedded:
            address = await _embedded(stack, options.db)
        client = await _connected(address, options.store, options.offload_over)
        models = Models(options.model)
        stack.push_async_callback(models.close)
        stack.push_async_callback(close_toolsets, [root.agent for root in registry.roots.values()])
        stack.push_async_callback(close_plugins, [p for root in registry.roots.values() for p in root.plugins])
        worker = await create_worker(
            client,
            registry,
            models=models,
            services=services,
            identity=identity,
            channels=channels,
            sign_link=links_of(options.identity, namespace=client.namespace),
            blobs=Blobs(options.store),
            task_queue=options.task_queue,
            workflows=options.only != "activities",
            activities=options.only != "workflows",
            overrides=options.allow_overrides or options.embedded,
            graceful_shutdown_timeout=options.drain,
            deployment_config=options.deployment_version,
        )
        await stack.enter_async_context(worker)
        log.info(
            "worker.ready",
            agents=sorted(registry.roots),
            task_queue=options.task_queue,
            address=client.service_client.config.target_host,
            namespace=client.namespace,
            model=options.model or ("gemini" if has_key() else DEMO),
        )
        await stop.wait()
        log.info("worker.draining", at_most_s=options.drain.total_seconds())
    log.info("worker.stopped")
    _leave(threads)


async def _embedded(stack: AsyncExitStack, db: Path | None) -> str:
    """Start a server for as long as `stack` is open, on Temporal's usual ports when they are free."""
    from waystation.embedded import USUAL_PORT, USUAL_UI_PORT, EmbeddedServer, ServerPortTaken, usual_ports_free

    usual = usual_ports_free()
    server = EmbeddedServer(
        db_filename=db, port=USUAL_PORT if usual else None, ui_port=USUAL_UI_PORT if usual else None, ui=True
    )
    try:
        await stack.enter_async_context(server)
    except ServerPortTaken:  # by another worker that is starting
        server = await stack.enter_async_context(EmbeddedServer(db_filename=db, ui=True))
    clients = {} if server.address.endswith(f":{USUAL_PORT}") else {"clients": f"TEMPORAL_ADDRESS={server.address}"}
    log.info("server.ready", address=server.address, ui=server.ui_url, **clients)
    return server.address


async def _connected(address: str | None, store: str | None, offload_over: int) -> Client:
    """Connect, and look whether the namespace is there; the SDK would say so only after the worker was ready."""
    try:
        client = await connect(address=address, store=store, offload_over=offload_over)
    except (RuntimeError, ValueError) as error:
        where = address or os.environ.get("TEMPORAL_ADDRESS") or "the address of the profile"
        raise CannotServe(
            f"Temporal is not reached at {where}: {connection_problem(error)}. Start a server there, or say where one "
            "is: --address HOST:PORT, TEMPORAL_ADDRESS or a profile; or start one with --embedded."
        ) from None
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise CannotServe(f"Temporal refuses this worker: {error.message} Look at its credentials.") from None
        raise CannotServe(
            f"Temporal has no namespace {client.namespace!r}. Create it with "
            f"`temporal operator namespace create {client.namespace}`, or set TEMPORAL_NAMESPACE to one that exists."
        ) from None
    return client


def _leave(threads: ThreadPoolExecutor) -> None:
    """End the process if a sync tool is still running: it cannot be stopped, and Python would wait for its thread."""
    threads.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + ABANDON_AFTER_S
    left = [thread for thread in threading.enumerate() if thread.name.startswith(f"{TOOL_THREADS}_")]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = [thread for thread in left if thread.is_alive()]
    if left:
        log.warning("tools.abandoned", count=len(left))
        sys.stderr.flush()
        os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    open_standard_streams()
    grammar = parser()
    options = grammar.parse_args(arguments)
    if not options.agents and options.only != "workflows":  # which never see an agent
        grammar.error("--agents is required, except with --only workflows")
    if options.embedded and options.address:
        grammar.error(
            "--embedded starts a server of its own, at a port that it says; leave --address out, or --embedded"
        )
    configure_logs(options.log_format)
    registry, problems = check(options.agents, options.model)
    if options.command != "check" and options.only != "workflows":  # where agents are checked no key is needed
        problems += unanswered(registry, options.model)
    for problem in problems:
        log.error("agent.invalid", place=problem.place, problem=str(problem.error))
    if problems:
        return 1
    try:
        check_places(options.store, options.artifacts, options.memory)
        identity, channels = identity_of(options.identity), channels_of(options.channels)
        for lack in lacking(registry, channels, verifies=identity is not None):
            log.warning("policy.not_kept", problem=lack)
        if options.command == "check":
            log.info("agents.valid", agents=sorted(registry.roots))
            return 0
        _forward_logs()
        _run(serve(options, registry, identity, channels))
    except WaystationError as error:
        log.error("worker.failed", problem=str(error))
        return 1
    return 0


def _forward_logs() -> None:
    """Have the SDK's core log like everything else; by itself it writes lines for a terminal to standard output."""
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    shown = TelemetryFilter(core_level="WARN", other_level="ERROR")
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=shown, forwarding=forwarding))))


def _run(coroutine: Any) -> None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)


if __name__ == "__main__":
    sys.exit(main())
