"""The program of a worker process: find agents, connect, serve, and drain on SIGTERM.

waystation worker --agents examples                 serve the agents of a folder
waystation worker --embedded --agents examples      the same, with a Temporal server of its own
waystation worker check --agents examples           only look for mistakes; exit code 1 when there are any

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
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from waystation.activities import DEMO, Channels, Models, Verifies, channels_of, foreign_names, has_key, unanswered
from waystation.agents.registry import Problem, Registry, discover
from waystation.client import connect, connection_problem
from waystation.core import TASK_QUEUE, Settings, Stores, WaystationError
from waystation.logs import configure_logs, open_standard_streams
from waystation.worker.plugin import create_worker
from waystation.worker.services import check_stores, identity_of, lasting_services, links_of, settings_warnings

log = structlog.get_logger("waystation.worker")

TOOL_THREADS = "tool"
ABANDON_AFTER_S = 0.5
"""How long threads may take to end once no tool is waited for."""
_DEFAULTS = Settings()


class _Version(argparse.Action):
    """As argparse's own, which would look the versions up at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print them and end."""
        from waystation.version import versions

        sys.stdout.write(f"{versions()}\n")
        parser.exit()


def _seconds(text: str) -> timedelta:
    """Read a duration of the command line."""
    try:
        result = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        result = timedelta(-1)
    if result < timedelta():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return result


def _deployment(text: str) -> WorkerDeploymentConfig:
    """Read which build of which deployment a worker is.

    What is open moves to the build that is current. Kept to the build that began it, a session, which never ends, would
    stay with that for good, and all invocations that it begins with it.
    """
    name, _, build = text.partition(".")
    if not name or not build:
        raise argparse.ArgumentTypeError(f"{text!r} is not a deployment's name, a dot and a build id")
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(name, build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "command": {"nargs": "?", "choices": ["run", "check"], "default": "run", "help": "check: only look for mistakes"},
    "--agents": {
        "nargs": "+",
        "type": Path,
        "default": (),
        "metavar": "DIR",
        "help": "folders with agent packages",
    },
    "--only": {
        "choices": ["workflows", "activities"],
        "help": "serve these; a process of another kind serves the others",
    },
    "--drain": {
        "type": _seconds,
        "default": _DEFAULTS.drain,
        "metavar": "SECONDS",
        "help": f"how long running tools may go on after SIGTERM; default: {_DEFAULTS.drain.total_seconds():g}",
    },
    "--task-queue": {"default": TASK_QUEUE},
    "--address": {"help": "HOST:PORT of Temporal; default: the TEMPORAL_* variables and profile"},
    "--namespace": {"help": "Temporal's namespace; default: likewise"},
    "--profile": {"help": "a profile of Temporal's client configuration; default: TEMPORAL_PROFILE"},
    "--embedded": {"action": "store_true", "help": "start a Temporal server too"},
    "--db": {"type": Path, "help": "with --embedded: keep the server's data in this file"},
    "--model": {"choices": [DEMO], "help": "demo: use the offline demo models of the packages"},
    "--artifacts": {
        "default": str(_DEFAULTS.stores.artifacts),
        "metavar": "URL",
        "help": "keep artifacts in this folder or object store, such as s3://bucket/prefix; default: %(default)s",
    },
    "--memory": {
        "type": Path,
        "default": Path(_DEFAULTS.stores.memory),
        "metavar": "FILE",
        "help": "keep memories here; default: %(default)s",
    },
    "--credentials": {
        "default": str(_DEFAULTS.stores.credentials),
        "metavar": "STORE",
        "help": "keep users' credentials here: an encrypted file, keyring:NAME, or python:MODULE:NAME for a store of "
        "your own; default: %(default)s",
    },
    "--store": {"metavar": "URL", "help": "folder or object store of large payloads; clients need it too"},
    "--offload-over": {
        "type": int,
        "default": _DEFAULTS.stores.offload_over,
        "metavar": "BYTES",
        "help": "size of a payload from which it goes there; default: %(default)s",
    },
    "--identity": {
        "type": Path,
        "metavar": "FILE",
        "help": "whose tokens verify approvers, and the key that opens them; default: the variable WAYSTATION_IDENTITY",
    },
    "--channels": {
        "type": Path,
        "metavar": "FILE",
        "help": "how approvers are notified of pending calls; default: the variable WAYSTATION_CHANNELS",
    },
    "--allow-overrides": {
        "action": "store_true",
        "help": "take instructions and models that forks bring; for development, and with --embedded always",
    },
    "--deployment-version": {
        "type": _deployment,
        "metavar": "NAME.BUILD",
        "help": "take part in Temporal's worker versioning as this build of a deployment; default: do not",
    },
    "--version": {"action": _Version, "nargs": 0, "help": "print the versions and exit"},
    "--log-format": {"choices": ["console", "json"], "help": "default: console in a terminal"},
}
"""Of argparse and not typer: the process should poll as soon as it can."""


def parse_options(arguments: Sequence[str] | None, program: str) -> argparse.Namespace:
    """Parse the command line; end the process with exit code 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog=program, description="Serve agents from a Temporal task queue.")
    for name, option in _OPTIONS.items():
        parser.add_argument(name, **option)
    options = parser.parse_args(arguments)
    if not options.agents and options.only != "workflows":  # workflows need no agents
        parser.error("--agents is required, except with --only workflows")
    if options.embedded and options.address:
        parser.error(
            "--embedded starts a server of its own, at a port that it says; leave --address out, or --embedded"
        )
    return options


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings that the command line says."""
    stores = Stores(
        payloads=options.store,
        offload_over=options.offload_over,
        artifacts=options.artifacts,
        memory=options.memory,
        credentials=options.credentials,
    )
    return Settings(
        stores=stores, drain=options.drain, allow_overrides=bool(options.allow_overrides or options.embedded)
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
    options: argparse.Namespace,
    registry: Registry,
    settings: Settings,
    identity: Verifies | None,
    channels: Channels | None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running tools finish.

    Raises:
        CannotServe: Temporal or its namespace is not there.
        EmbeddedServerError: The embedded server did not start.
        StoreFailed: Artifacts cannot be stored where they should.
        CredentialStoreError: Nor credentials.
    """
    services = lasting_services(settings.stores)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    # The loop's own pool may have as few as six threads; every further sync tool would wait and look as if it ran.
    threads = ThreadPoolExecutor(settings.concurrent_activities, thread_name_prefix=TOOL_THREADS)
    loop.set_default_executor(threads)
    async with AsyncExitStack() as stack:
        address = await _embedded(stack, options.db) if options.embedded else options.address
        client = await _connected(options, address, settings.stores)
        worker = create_worker(
            client,
            registry,
            task_queue=options.task_queue,
            settings=settings,
            models=Models(options.model),
            services=services,
            identity=identity,
            channels=channels,
            sign_link=links_of(options.identity, namespace=client.namespace),
            workflows=options.only != "activities",
            activities=options.only != "workflows",
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
        log.info("worker.draining", at_most_s=settings.drain.total_seconds())
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


async def _connected(options: argparse.Namespace, address: str | None, stores: Stores) -> Client:
    """Connect, and check that the namespace exists; the SDK would report it only after the worker was ready."""
    try:
        client = await connect(
            address=address,
            namespace=options.namespace,
            profile=options.profile,
            store=stores.payloads,
            offload_over=stores.offload_over,
        )
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


def main(arguments: Sequence[str] | None = None, *, program: str = "worker.py") -> int:
    """Run the program; return its exit code. `program` is its name in usage messages."""
    open_standard_streams()
    options = parse_options(arguments, program)
    configure_logs(options.log_format)
    registry, problems = check(options.agents, options.model)
    if options.command != "check" and options.only != "workflows":  # where agents are checked no key is needed
        problems += unanswered(registry, options.model)
    for problem in problems:
        log.error("agent.invalid", place=problem.place, problem=str(problem.error))
    if problems:
        return 1
    try:
        settings = settings_of(options)
        check_stores(settings.stores)
        identity, channels = identity_of(options.identity), channels_of(options.channels)
        for lack in settings_warnings(registry, channels, verifies=identity is not None):
            log.warning("policy.not_kept", problem=lack)
        if options.command == "check":
            log.info("agents.valid", agents=sorted(registry.roots))
            return 0
        _forward_logs()
        _run(serve(options, registry, settings, identity, channels))
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
