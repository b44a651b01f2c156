"""The worker program, which finds agents, connects to Temporal, serves the agents, and drains on SIGTERM.

waystation worker --agents examples                 serve the agents in a folder
waystation worker --embedded --agents examples      also start a Temporal server
waystation worker check --agents examples           only check the agents

Exit codes: 0 after SIGTERM, SIGINT or a successful check, 1 if an agent or a setting is invalid or the worker cannot
serve, 2 for a usage error, 11 if a tool blocked the event loop for too long, 12 if the worker used too much memory.
After 11 or 12, start the worker again.
"""

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    FixedSizeSlotSupplier,
    Interceptor,
    PollerBehaviorAutoscaling,
    ResourceBasedSlotConfig,
    ResourceBasedSlotSupplier,
    ResourceBasedTunerConfig,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from waystation.activities import (
    DEMO,
    Channels,
    Models,
    TokenVerifier,
    find_agents_without_model,
    find_foreign_model_names,
    has_api_key,
    list_model_warnings,
    read_channels,
)
from waystation.adk import describe_differences
from waystation.apps import Problem, Registry, discover
from waystation.client import are_credentials_refused, connect, connection_problem, connection_settings
from waystation.client.connection import DEFAULT_NAMESPACE, describe_rpc, is_unreachable
from waystation.configuration import describe_unknown
from waystation.core.approval import IDENTITY_ENV
from waystation.core.contract import MIN_HEARTBEAT_INTERVAL, TASK_QUEUE, Settings, Stores
from waystation.core.errors import InvalidConfiguration, WaystationError
from waystation.logs import configure_core, configure_logs, open_standard_streams
from waystation.project_file import (
    HERE,
    NO_PROJECT,
    OPTION_KEYS,
    PROJECT_ENV,
    PROJECT_FILE,
    SETTINGS,
    Project,
    current_project,
    find_setting,
    load_project,
    read_quotas,
    use_project,
)
from waystation.stop_signals import handle_signals
from waystation.storage import describe_place
from waystation.tools.resources import Lifespans
from waystation.tools.threads import THREADS, TOOL_THREADS
from waystation.worker.plugin import WORKER_OPTIONS, create_worker
from waystation.worker.process import tune_process
from waystation.worker.service_setup import (
    check_stores,
    compare_stores,
    create_lasting_services,
    create_link_signer,
    create_span_export,
    create_store_checks,
    describe_stores,
    list_requester_policies,
    list_settings_warnings,
    load_identity,
)
from waystation.worker.tool_checks import list_blocking_tools, list_undescribed_tools
from waystation.worker_keys import WorkerKeys

if TYPE_CHECKING:
    from waystation.worker.status_server import StatusServer

log = structlog.get_logger("waystation.worker")

ABANDON_AFTER_S = 0.5
"""How long to wait for tool threads to finish after the worker has stopped. Then the process exits without them."""
CONNECT_LIMIT_S = 10.0
"""Time limit for one attempt to connect to the server."""
CONNECT_PAUSE_S = 0.5
"""Pause between attempts to connect to a server that cannot be reached."""
EMBEDDED_KEYS = Path(".waystation", "keys.json")
TASK_KINDS = "workflow", "activity", "nexus"
SHORT_TASKS = 100
"""How many tasks of each other kind may run beside the activities that `--resource-tuner` limits. The SDK's default."""
_DEFAULTS = Settings()
MODEL_GRACE = _DEFAULTS.workflow.model.start_to_close - _DEFAULTS.activity.model_timeout


def _parse_count(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")


def _parse_seconds(text: str) -> timedelta:
    with suppress(ValueError, OverflowError):
        duration = timedelta(seconds=float(text))
        if duration >= timedelta():
            return duration
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")


def _parse_limit(text: str) -> timedelta:
    if limit := _parse_seconds(text):
        return limit
    raise argparse.ArgumentTypeError("must be more than 0 seconds")


def _parse_interval(text: str) -> timedelta:
    if (interval := _parse_seconds(text)) >= MIN_HEARTBEAT_INTERVAL:
        return interval
    raise argparse.ArgumentTypeError(f"must be at least {MIN_HEARTBEAT_INTERVAL.total_seconds():g} seconds")


def _parse_mebibytes(text: str) -> int:
    return _parse_count(text) << 20


def _parse_targets(text: str) -> ResourceBasedTunerConfig:
    cpu, _, memory = text.partition(":")
    if not (cpu.isdecimal() and memory.isdecimal() and 0 < int(cpu) <= 100 and 0 < int(memory) <= 100):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form CPU:MEMORY, with percentages from 1 to 100")
    return ResourceBasedTunerConfig(target_memory_usage=int(memory) / 100, target_cpu_usage=int(cpu) / 100)


def _parse_address(text: str) -> tuple[str, int]:
    from waystation.worker.status_server import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_deployment(text: str) -> WorkerDeploymentConfig:
    name, _, build = text.partition(".")
    if not name or not build:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME.BUILD")
    return WorkerDeploymentConfig(version=WorkerDeploymentVersion(name, build), use_worker_versioning=True)


_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "command": {
        "nargs": "?",
        "choices": ["run", "check"],
        "default": "run",
        "help": "run: serve the agents (default); check: only check them",
    },
    "--agents": {
        "nargs": "+",
        "type": Path,
        "default": (),
        "metavar": "DIR",
        "help": "folders that contain agent packages; required unless --only workflows is given",
    },
    "--only": {
        "choices": ["workflows", "activities"],
        "help": "serve only workflows or only activities; another worker must serve the rest",
    },
    "--drain": {
        "type": _parse_seconds,
        "default": _DEFAULTS.drain,
        "metavar": "SECONDS",
        "help": f"how long running tools have to finish after SIGTERM; default: {_DEFAULTS.drain.total_seconds():g}",
    },
    "--model-timeout": {
        "type": _parse_limit,
        "default": _DEFAULTS.activity.model_timeout,
        "metavar": "SECONDS",
        "help": "how long a model may take for one reply before the call is retried; default: "
        f"{_DEFAULTS.activity.model_timeout.total_seconds():g}",
    },
    "--text-interval": {
        "type": _parse_interval,
        "default": _DEFAULTS.activity.text_interval,
        "metavar": "SECONDS",
        "help": "minimum interval between pieces of streamed text; each is a billable action of Temporal Cloud; "
        f"default: {_DEFAULTS.activity.text_interval.total_seconds():g}",
    },
    "--cancel-within": {
        "type": _parse_interval,
        "metavar": "SECONDS",
        "help": "how soon a cancellation reaches a running model call, or a tool without a setting of its own; each "
        "interval is a billable action; default: a third of the heartbeat timeout, which is 10 for most calls",
    },
    "--event-loop-limit": {
        "type": _parse_seconds,
        "default": _DEFAULTS.event_loop_limit,
        "metavar": "SECONDS",
        "help": "how long a tool may block the event loop before it is stopped and the worker exits with 11; 0 means "
        f"no limit; default: {_DEFAULTS.event_loop_limit.total_seconds():g}",
    },
    "--max-rss": {
        "type": _parse_mebibytes,
        "metavar": "MIB",
        "help": "resident memory, in MiB, above which the worker drains and exits with 12; default: no limit",
    },
    "--hold": {
        "type": _parse_limit,
        "default": _DEFAULTS.workflow.hold.limit,
        "metavar": "SECONDS",
        "help": "how long calls that no worker can run are held before they fail; default: 604800 (7 days)",
    },
    "--workflow-task-limit": {
        "type": _parse_limit,
        "default": _DEFAULTS.workflow_task_limit,
        "metavar": "SECONDS",
        "help": "how long a workflow may process what has arrived before its workflow task fails; default: "
        f"{_DEFAULTS.workflow_task_limit.total_seconds():g}",
    },
    "--max-concurrent-activities": {
        "type": _parse_count,
        "metavar": "N",
        "help": f"how many models and tools run at the same time; default: {_DEFAULTS.concurrent_activities}",
    },
    "--resource-tuner": {
        "type": _parse_targets,
        "metavar": "CPU:MEMORY",
        "help": "start no more models and tools while this machine uses more than these percentages of its CPU time or "
        "memory, for example 90:80; at most --max-concurrent-activities run; default: no such limit",
    },
    "--poller-autoscaling": {
        "action": "store_true",
        "help": "let the server decide how many requests for tasks are open; default: 5 for each kind of task",
    },
    "--max-cached-workflows": {
        "type": _parse_count,
        "metavar": "N",
        "help": "how many workflows to keep in memory between their tasks, at about 0.1 MB each; default: "
        f"{WORKER_OPTIONS['max_cached_workflows']}",
    },
    "--task-queue": {"default": TASK_QUEUE, "help": "task queue to poll; default: %(default)s"},
    "--address": {
        "metavar": "HOST:PORT",
        "help": "address of the Temporal server; default: $TEMPORAL_ADDRESS, or the profile's address",
    },
    "--namespace": {"help": "Temporal namespace; default: $TEMPORAL_NAMESPACE, or the profile's namespace"},
    "--profile": {"help": "profile in Temporal's client configuration file; default: $TEMPORAL_PROFILE"},
    "--wait": {
        "type": _parse_seconds,
        "default": timedelta(seconds=30),
        "metavar": "SECONDS",
        "help": "how long to wait at the start for a server that cannot be reached; default: 30",
    },
    "--embedded": {"action": "store_true", "help": "also start a Temporal server"},
    "--db": {"type": Path, "metavar": "FILE", "help": "with --embedded: store the server's data in this file"},
    "--ui": {"action": "store_true", "help": "with --embedded: also serve Temporal's Web UI"},
    "--model": {
        "choices": [DEMO],
        "help": "demo: run without API keys, on the demo models of the agent packages or the built-in one",
    },
    "--artifacts": {
        "default": str(_DEFAULTS.stores.artifacts),
        "metavar": "URL",
        "help": "folder or object store for artifacts, such as s3://bucket/prefix; default: %(default)s",
    },
    "--memory": {
        "default": str(_DEFAULTS.stores.memory),
        "metavar": "STORE",
        "help": "store for memories: an SQLite file, a PostgreSQL URL, or python:MODULE:NAME for your own store; "
        "default: %(default)s",
    },
    "--credentials": {
        "default": str(_DEFAULTS.stores.credentials),
        "metavar": "STORE",
        "help": "store for users' credentials: an encrypted file, a PostgreSQL URL, or "
        "python:MODULE:NAME for your own store; default: %(default)s",
    },
    "--store": {"metavar": "URL", "help": "folder or object store for large payloads; clients must use the same one"},
    "--strict": {
        "action": "store_true",
        "help": "do not start if a store differs from the one that open invocations recorded; default: log a warning",
    },
    "--offload-over": {
        "type": int,
        "default": _DEFAULTS.stores.offload_over,
        "metavar": "BYTES",
        "help": "minimum size of payloads that go to --store; default: %(default)s",
    },
    "--identity": {
        "type": Path,
        "metavar": "FILE",
        "help": "configuration file for verifying the identity of approvers; default: $WAYSTATION_IDENTITY",
    },
    "--keys": {
        "metavar": "FILE",
        "help": "keys that all workers share to authenticate approvals; default: $WAYSTATION_KEYS, or with --embedded "
        ".waystation/keys.json, which is created",
    },
    "--channels": {
        "type": Path,
        "metavar": "FILE",
        "help": "configuration file of the channels that notify approvers; default: $WAYSTATION_CHANNELS",
    },
    "--quotas": {
        "type": Path,
        "metavar": "FILE",
        "help": "configuration file of the rate limits and budgets that all workers share; default: $WAYSTATION_QUOTAS",
    },
    "--nexus": {
        "action": "store_true",
        "help": "also serve the Nexus service `waystation`, with which workflows of other namespaces run agents",
    },
    "--allow-overrides": {
        "action": "store_true",
        "help": "let forks replace instructions and models; for development; implied by --embedded",
    },
    "--allow-forks": {
        "action": "store_true",
        "help": "let invocations be forked; implied by --embedded and --allow-overrides",
    },
    "--deployment-version": {
        "type": _parse_deployment,
        "metavar": "NAME.BUILD",
        "help": "use Temporal's worker versioning with this deployment name and build ID",
    },
    "--traces": {
        "action": "store_true",
        "help": "export spans over OTLP; the standard OTEL_* environment variables set the endpoint and the sampler",
    },
    "--trace-content": {
        "action": "store_true",
        "help": "with --traces: include messages, tool arguments and results in spans",
    },
    "--metrics": {
        "type": _parse_address,
        "metavar": "[HOST:]PORT",
        "help": "serve metrics for Prometheus and health checks at this address; default host: 127.0.0.1",
    },
    "--metrics-by-tenant": {
        "action": "store_true",
        "help": "with --metrics: add the tenant to the metrics that have an agent",
    },
    "--project-file": {
        "default": HERE,
        "metavar": "FILE",
        "help": f"project file with these settings, or `{NO_PROJECT}`; default: ${PROJECT_ENV}, or {PROJECT_FILE} in "
        "this folder or the nearest one above it",
    },
    "--version": {"action": "store_true", "help": "print the versions and exit"},
    "--log-format": {
        "choices": ["console", "json"],
        "help": "format of the logs; default: console in a terminal, otherwise json",
    },
    "--log-level": {
        "choices": ["debug", "info", "warning", "error"],
        "help": "lowest level of the logs, also of those that tools write with `logging`; default: info for this "
        "program, warning for `logging`",
    },
}
"""Options for argparse, which is used because a worker should start polling quickly and typer is slow to load.

Each option has a key in the project file: the one that `SETTINGS` lists, or else its name, in the table `worker` or in
the one that `_TABLES` names.
"""
_TABLES = {
    **dict.fromkeys(("--traces", "--trace-content", "--metrics", "--metrics-by-tenant"), "telemetry"),
    **dict.fromkeys(("--log-format", "--log-level"), "telemetry"),
}
_ONLY_OPTIONS = ("command", "--project-file", "--version")


def list_options() -> dict[str, str]:
    """Return the names of the options, each with its help."""
    return {name: str(option["help"]) for name, option in _OPTIONS.items() if name.startswith("-")}


def parse_options(arguments: Sequence[str] | None, program: str) -> argparse.Namespace:
    """Parse the command line. Exit with code 2 if it is not valid, or with code 0 after `--help` or `--version`."""
    parser = argparse.ArgumentParser(prog=program, description="Serve agents on a Temporal task queue.")
    for name, option in _OPTIONS.items():
        parser.add_argument(name, **option)
    try:
        use_project(load_project(_find_project_file(arguments)))
        parser.set_defaults(
            **read_project(current_project()),
            identity=find_setting(IDENTITY_ENV),
            keys=find_setting(WorkerKeys.variable),
        )
    except InvalidConfiguration as error:
        parser.exit(2, f"{program}: {error}\n")
    options = parser.parse_args(arguments)
    if options.embedded:  # the namespace in the project file is on another server
        options.namespace = options.namespace or os.environ.get("TEMPORAL_NAMESPACE") or DEFAULT_NAMESPACE
    if options.version:
        from waystation.version import versions  # slow to import, so only when needed

        sys.stdout.write(f"{versions()}\n")
        parser.exit()
    mistakes = {
        "--agents is required unless --only workflows is given": not options.agents and options.only != "workflows",
        "--embedded starts a separate server; use either --embedded or --address": options.embedded and options.address,
        "--trace-content requires --traces": options.trace_content and not options.traces,
        "--metrics-by-tenant requires --metrics": options.metrics_by_tenant and not options.metrics,
        "--max-cached-workflows has no effect with --only activities, which runs no workflows": (
            options.only == "activities" and options.max_cached_workflows
        ),
        "--max-concurrent-activities and --resource-tuner have no effect with --only workflows, which runs no "
        "activities": options.only == "workflows" and (options.max_concurrent_activities or options.resource_tuner),
    }
    for text in (text for text, is_made in mistakes.items() if is_made):
        parser.error(text)
    return options


def _find_project_file(arguments: Sequence[str] | None) -> str:
    """Return the value of `--project-file`, which decides the defaults of the other options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--project-file", default=HERE)
    return str(parser.parse_known_args(arguments)[0].project_file)


def list_option_keys() -> dict[str, str]:
    """Return the options that the project file may contain, by their keys there."""
    names = [name for name in _OPTIONS if name not in _ONLY_OPTIONS]
    own = {name: f"{_TABLES.get(name, 'worker')}.{name[2:].replace('-', '_')}" for name in names}
    return {OPTION_KEYS.get(name, key): name for name, key in own.items()}


def read_project(project: Project | None) -> dict[str, Any]:
    """Return the values of options that a project file contains. Settings with a variable are read where it is.

    Raises:
        InvalidConfiguration: The file has an unknown option, or a value that the option does not accept.
    """
    keys, defaults = list_option_keys(), dict[str, Any]()
    if project is None:
        return defaults
    for table in ("worker", "telemetry"):
        valid = [key.partition(".")[2] for key in keys if key.startswith(f"{table}.")]
        for unknown in (name for name in project.table(table) if name not in valid):
            raise InvalidConfiguration(project.file, table, f"{describe_unknown(unknown, valid)}.")
    for key, name in keys.items():
        is_own = key not in SETTINGS
        table, _, own = key.partition(".")
        value = project.table(table).get(own) if is_own else None if SETTINGS[key].variable else project.get(key)
        if value is not None:
            defaults[name[2:].replace("-", "_")] = _convert(project, key, _OPTIONS[name], value)
    return defaults


def _convert(project: Project, key: str, option: Mapping[str, Any], value: Any) -> Any:
    """Convert a value of a project file as argparse converts the text of an option."""
    try:
        if option.get("action") == "store_true":
            if isinstance(value, bool):
                return value
            raise ValueError("must be true or false")
        convert = option.get("type", str)
        if convert is Path:
            convert = project.file.parent.joinpath
        converted = [convert(str(entry)) for entry in value] if "nargs" in option else convert(str(value))
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise InvalidConfiguration(project.file, key, f"{error}.") from None
    if "choices" in option and converted not in option["choices"]:
        raise InvalidConfiguration(project.file, key, f"{value!r} is not one of {', '.join(option['choices'])}.")
    return converted


def parse_settings(options: argparse.Namespace) -> Settings:
    """Return the settings that the command-line options specify.

    Raises:
        InvalidConfiguration: The file with the quotas is not valid.
    """
    workflow, model = _DEFAULTS.workflow, _DEFAULTS.workflow.model
    start_to_close = max(model.start_to_close, options.model_timeout + MODEL_GRACE)
    return Settings(
        stores=Stores(
            payloads=options.store,
            offload_over=options.offload_over,
            artifacts=options.artifacts,
            memory=options.memory,
            credentials=options.credentials,
        ),
        workflow=replace(
            workflow,
            model=replace(model, start_to_close=start_to_close),
            hold=replace(workflow.hold, limit=options.hold),
        ),
        activity=replace(
            _DEFAULTS.activity,
            model_timeout=options.model_timeout,
            text_interval=options.text_interval,
            cancel_within=options.cancel_within,
        ),
        quotas=read_quotas(options.quotas),
        concurrent_activities=options.max_concurrent_activities or _DEFAULTS.concurrent_activities,
        drain=options.drain,
        event_loop_limit=options.event_loop_limit,
        max_rss=options.max_rss,
        workflow_task_limit=options.workflow_task_limit,
        allow_overrides=bool(options.allow_overrides or options.embedded),
        allow_forks=bool(options.allow_forks or options.embedded),
    )


def _load_keys(options: argparse.Namespace) -> WorkerKeys | None:
    """Return the worker keys, or None if no key file is given. For an embedded server, create a key file if necessary.

    Raises:
        InvalidConfiguration: The key file is not usable.
        OSError: The key file cannot be created.
    """
    if options.keys:
        return WorkerKeys.read(options.keys)
    if options.embedded and options.command != "check":
        return WorkerKeys.read_or_create(EMBEDDED_KEYS)
    return None


def check(folders: Sequence[Path], model: str | None = None) -> tuple[Registry, list[Problem]]:
    """Return the agents in `folders` and all problems found in them. With `--model demo`, any model name is valid."""
    registry, problems = discover(folders)
    return registry, [*problems, *(() if model == DEMO else find_foreign_model_names(registry))]


class CannotServe(WaystationError):
    """The worker cannot connect to Temporal, or cannot access its namespace.

    Fix what the message names: the address, the port, the certificate or the namespace.
    """


async def serve(
    options: argparse.Namespace,
    registry: Registry,
    settings: Settings,
    identity: TokenVerifier | None,
    channels: Channels | None,
    keys: WorkerKeys | None,
    status: "StatusServer | None" = None,
) -> int:
    """Serve until SIGTERM, SIGINT or a request by the watchdog, then let running tools finish. Return the exit code.

    Raises:
        CannotServe: The worker cannot connect to Temporal, or cannot access the namespace.
        EmbeddedServerError: The embedded server did not start.
        InvalidConfiguration: The worker lacks required keys, or the identity file is not valid.
        StoreFailed: The artifact store cannot be used.
        CredentialStoreError: The credential store cannot be used.
        LifespanFailed: A resource of an app cannot be opened.
    """
    lifespans = Lifespans(registry.list_lifespans if options.only != "workflows" else dict)
    services = replace(create_lasting_services(settings.stores), lifespans=lifespans)
    stop, exit_code = asyncio.Event(), 0

    def request_exit(code: int) -> None:
        nonlocal exit_code
        exit_code = exit_code or code
        stop.set()

    handle_signals(stop.set, "SIGTERM", "SIGINT")
    asyncio.get_running_loop().set_default_executor(THREADS)  # the stores of running tools use it
    async with AsyncExitStack() as stack:
        if status:
            status.watch(create_store_checks(settings))
            log.info("metrics.ready", url=status.url)
        address = await _start_embedded_server(stack, options.db, options.ui) if options.embedded else options.address
        client = await _connect(options, address, settings.stores, stop)
        if client is None:
            return exit_code
        await compare_stores(client, options.task_queue, settings, services, strict=options.strict)
        await stack.enter_async_context(lifespans.opened())
        worker = create_worker(
            client,
            registry,
            settings=settings,
            services=services,
            identity=identity,
            channels=channels,
            keys=keys,
            request_exit=request_exit,
            interceptors=_create_interceptors(options, stack),
            **_list_worker_options(options, settings, client.namespace),
        )
        await stack.enter_async_context(worker)
        log.info("worker.ready", **_describe_worker(options, registry, settings, client))
        if status:
            status.serve(client, options.task_queue)
        await stop.wait()
        if status:
            status.stage = "draining"
        log.info("worker.draining", at_most_s=settings.drain.total_seconds())
    log.info("worker.stopped", exit_code=exit_code)
    _leave(exit_code)
    return exit_code


def _list_worker_options(options: argparse.Namespace, settings: Settings, namespace: str) -> dict[str, Any]:
    """Return the arguments of `create_worker` that come from the command line alone."""
    return {
        "task_queue": options.task_queue,
        "models": Models(options.model),
        "sign_link": create_link_signer(options.identity, namespace=namespace) if options.identity else None,
        "workflows": options.only != "activities",
        "activities": options.only != "workflows",
        "deployment_config": options.deployment_version,
        "nexus_service_handlers": _create_nexus_services() if options.nexus else [],
        **list_load_options(options, settings),
    }


def list_load_options(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Return the options of `temporalio.worker.Worker` that decide how much work the worker takes."""
    cached = options.max_cached_workflows or WORKER_OPTIONS["max_cached_workflows"]
    chosen: dict[str, Any] = {"max_cached_workflows": cached}
    if options.poller_autoscaling:
        chosen |= {f"{kind}_task_poller_behavior": PollerBehaviorAutoscaling() for kind in TASK_KINDS}
    if options.resource_tuner:
        # Workflow tasks and quick calls take milliseconds, and the SDK would delay each by the tuner's ramp of 50 ms.
        fixed = FixedSizeSlotSupplier(SHORT_TASKS)
        limits = ResourceBasedSlotConfig(maximum_slots=settings.concurrent_activities)
        chosen["tuner"] = WorkerTuner.create_composite(
            workflow_supplier=fixed,
            activity_supplier=ResourceBasedSlotSupplier(limits, options.resource_tuner),
            local_activity_supplier=fixed,
            nexus_supplier=fixed,
        )
    return chosen


def _describe_worker(
    options: argparse.Namespace, registry: Registry, settings: Settings, client: Client
) -> dict[str, object]:
    """Return the fields of the log event of a worker that is ready. Some places depend on the current folder."""
    return {
        "agents": sorted(registry.roots),
        "task_queue": options.task_queue,
        "address": client.service_client.config.target_host,
        "namespace": client.namespace,
        "model": options.model or ("gemini" if has_api_key() else DEMO),
        "agent_folders": [describe_place(folder) for folder in options.agents],
        **({"keys": describe_place(EMBEDDED_KEYS)} if options.embedded and not options.keys else {}),
        **describe_stores(settings),
    }


def _create_interceptors(options: argparse.Namespace, stack: AsyncExitStack) -> list[Interceptor]:
    """Return the worker's additional interceptors, which are closed with `stack`."""
    interceptors: list[Interceptor] = []
    if options.traces:
        spans = create_span_export(content=options.trace_content)
        stack.callback(spans.close)
        interceptors.append(spans)
    if options.metrics:
        from waystation.worker.metric_export import MetricExport

        metrics = MetricExport(tenants=options.metrics_by_tenant)
        stack.callback(metrics.close)
        interceptors.append(metrics)
    return interceptors


def _create_nexus_services() -> list[object]:
    from waystation.worker.nexus_service import AgentService

    return [AgentService()]


async def _start_embedded_server(stack: AsyncExitStack, db: Path | None, ui: bool) -> str:
    """Start a server that runs until `stack` closes, on Temporal's default ports if they are free."""
    from waystation.embedded import USUAL_PORT, USUAL_UI_PORT, EmbeddedServer, ServerPortTaken, are_usual_ports_free

    usual = are_usual_ports_free()
    server = EmbeddedServer(
        db_filename=db, port=USUAL_PORT if usual else None, ui_port=USUAL_UI_PORT if usual else None, ui=ui
    )
    try:
        await stack.enter_async_context(server)
    except ServerPortTaken:  # another worker that is starting at the same time took it
        server = await stack.enter_async_context(EmbeddedServer(db_filename=db, ui=ui))
    clients = {} if server.address.endswith(f":{USUAL_PORT}") else {"clients": f"TEMPORAL_ADDRESS={server.address}"}
    data = str(db) if db else "in memory: it is lost when the worker stops; keep it with --db FILE"
    log.info("server.ready", address=server.address, data=data, ui=server.ui_url, **clients)
    return server.address


async def _connect(
    options: argparse.Namespace, address: str | None, stores: Stores, stop: asyncio.Event
) -> Client | None:
    """Connect and check that the namespace exists. The SDK would report a missing namespace only after startup.

    If the server cannot be reached, try again until `--wait` has passed. Return None if `stop` is set in the meantime.

    Raises:
        CannotServe: The server cannot be reached or rejects the worker, or the namespace does not exist.
    """
    config = connection_settings(address=address, namespace=options.namespace, profile=options.profile)
    server, namespace = config.get("target_host"), config.get("namespace")
    deadline = time.monotonic() + options.wait.total_seconds()
    is_waiting = False
    while True:
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                client = await connect(
                    address=address,
                    namespace=options.namespace,
                    profile=options.profile,
                    store=stores.payloads,
                    offload_over=stores.offload_over,
                )
                await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
            return client
        except (RPCError, RuntimeError, TimeoutError, ValueError) as error:
            if stop.is_set():
                return None
            # A server that is starting may not have its namespaces yet.
            is_starting = is_waiting and isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
            if time.monotonic() >= deadline or not (is_starting or _may_be_temporary(error)):
                raise _connection_failure(error, server, namespace) from None
            if not is_waiting:
                waits_s = options.wait.total_seconds()
                log.warning("server.unreachable", address=server, problem=_describe(error), waits_at_most_s=waits_s)
            is_waiting = True
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), CONNECT_PAUSE_S)
            return None


def _may_be_temporary(error: Exception) -> bool:
    """Return whether an attempt to connect failed for a reason that may be temporary."""
    if isinstance(error, RPCError):
        return is_unreachable(error)
    is_permanent = "InvalidContentType" in str(error) or are_credentials_refused(error)
    return isinstance(error, RuntimeError | TimeoutError) and not is_permanent


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_LIMIT_S:g} s"
    return describe_rpc(error) if isinstance(error, RPCError) else connection_problem(error)


def _connection_failure(error: Exception, server: str | None, namespace: str | None) -> CannotServe:
    if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
        return CannotServe(
            f"Namespace {namespace!r} not found. Create it with "
            f"`temporal operator namespace create {namespace}`, or set TEMPORAL_NAMESPACE to an existing one."
        )
    if are_credentials_refused(error) or (isinstance(error, RPCError) and not is_unreachable(error)):
        return CannotServe(f"Temporal rejected this worker: {_describe(error)} Check its credentials.")
    return CannotServe(
        f"Temporal cannot be reached at {server}: {_describe(error)}. Start a server there, set another "
        "address (--address HOST:PORT, TEMPORAL_ADDRESS or a profile), or start a server with --embedded."
    )


def _leave(exit_code: int) -> None:
    """Exit the process with `exit_code` if a sync tool is still running after `ABANDON_AFTER_S`.

    The tool cannot be stopped, and Python would wait for its thread.
    """
    THREADS.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + ABANDON_AFTER_S
    tools = [thread for thread in threading.enumerate() if thread.name.startswith(f"{TOOL_THREADS}_")]
    for thread in tools:
        thread.join(max(0.0, deadline - time.monotonic()))
    if count := sum(thread.is_alive() for thread in tools):
        log.warning("tools.abandoned", count=count)
        sys.stderr.flush()
        os._exit(exit_code)


def main(arguments: Sequence[str] | None = None, *, program: str = "worker.py") -> int:
    """Run the program and return its exit code. `program` is its name in usage messages."""
    open_standard_streams()
    options = parse_options(arguments, program)
    configure_logs(options.log_format, options.log_level)
    registry, problems = check(options.agents, options.model)
    if options.command != "check" and options.only != "workflows":  # checking agents does not require an API key
        problems += find_agents_without_model(registry, options.model)
    for problem in problems:
        log.error("agent.invalid", place=problem.place, problem=str(problem.error))
    if problems:
        return 1
    try:
        settings = parse_settings(options)
        check_stores(settings)
        identity = load_identity(options.identity) if options.identity else None
        channels = read_channels(options.channels)
        keys = _load_keys(options)
        is_check = options.command == "check"
        for event, warnings in (
            ("policy.not_kept", list_settings_warnings(registry, channels, verifies=identity is not None)),
            ("model.outdated_or_unknown", list_model_warnings(registry, datetime.now(UTC).date())),
            ("tool.blocking", list_blocking_tools(registry)),
            ("tool.undescribed", list_undescribed_tools(registry) if is_check else ()),
        ):
            for warning in warnings:
                log.warning(event, problem=warning)
        if is_check:
            for root in registry.roots.values():
                for fields in describe_differences(root.tree.values(), root.plugins, root.without_effect):
                    log.info("adk_agent.differs", root=root.name, **fields)
            for requirement in list_requester_policies(registry):
                log.info("policy.needs_token", requirement=requirement)
            log.info("agents.valid", agents=sorted(registry.roots), **describe_stores(settings))
            return 0
        if not options.metrics:
            configure_core()
            return _run(serve(options, registry, settings, identity, channels, keys))
        from waystation.worker.status_server import StatusServer

        with StatusServer(options.metrics) as status:
            return _run(serve(options, registry, settings, identity, channels, keys, status))
    except WaystationError as error:
        project = current_project()
        log.error("worker.failed", problem=f"{error}{project.explain(str(error)) if project else ''}")
        return 1


def _run(coroutine: Coroutine[Any, Any, int]) -> int:
    tune_process()
    try:
        import uvloop
    except ImportError:  # not on Windows
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)
