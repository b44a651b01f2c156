"""The commands `waystation doctor`, `retry` and `give-up`: find and handle invocations that do not continue."""

import asyncio
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    GetSystemInfoRequest,
    PollWorkflowTaskQueueRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from waystation import extensions
from waystation.cli.command_context import Agents, AsJson, CommandContext, CommandProblem, Exit, InvocationId
from waystation.cli.diagnosis import CheckResult, Observations, Poller, SettingsFile, diagnose
from waystation.cli.project_options import DEFAULT, list_given, list_origins, verify_tables
from waystation.client import SEARCH_ATTRIBUTE_TYPES, AgentClient, check_search_attributes, find_store_differences
from waystation.client.token_encryption import load_encrypter
from waystation.configuration import is_exposed
from waystation.core.approval import CLIENT_IDENTITY_ENV, IDENTITY_ENV
from waystation.core.contract import WORKFLOW, Stores
from waystation.core.errors import CredentialStoreError, InvalidConfiguration, StoreFailed
from waystation.history import fetch_retries
from waystation.key_set import EncryptionKeys
from waystation.presentation import terminal
from waystation.project_file import (
    CHANNELS_ENV,
    QUOTAS_ENV,
    WEB_IDENTITY_ENV,
    current_project,
    find_setting,
    read_quotas,
)
from waystation.storage import (
    OWN_SCHEMES,
    USER_KEYS_VARIABLE,
    ObjectFiles,
    StoreIds,
    describe_place,
    find_database_problem,
    find_user_keys,
    local_path,
    probe,
)
from waystation.version import find_adk_problem, is_adk_installed, waystation_version
from waystation.worker.process import load_worker
from waystation.worker_keys import WorkerKeys

QUEUE_TYPES = {
    "workflows": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activities": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}
NEWEST = 200
"""Number of open invocations whose task queues are checked."""
CLOCK_QUEUE = "waystation-doctor"
"""A task queue without tasks, which is polled to learn the server's time."""
CLOCK_LIMIT = timedelta(seconds=5)
CLOCK_POLL_S = 0.05
STORE_LIMIT_S = 10.0
"""How long an object store may take to answer. Its client would retry for minutes."""
MAX_FAILING = 20
"""Maximum number of invocations with failing workflow tasks to report, and of the newest open ones whose calls are
checked."""
_OF_ENCRYPTION = ("encryption", "encryption keys", "user keys")
"""Checks without which no payload can be decrypted."""
DEFAULTS = Stores()
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class NamedStores:
    """The stores of the workers that options of `waystation doctor` name."""

    artifacts: str | None
    memory: str | None
    credentials: str | None


async def doctor(
    ctx: CommandContext,
    agents: Agents = None,
    artifacts: Annotated[str | None, typer.Option(metavar="URL", help="Check this store of artifacts.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="STORE", help="Check this store of memories.")] = None,
    credentials: Annotated[str | None, typer.Option(metavar="STORE", help="Check this credential store.")] = None,
    json: AsJson = False,
) -> Exit:
    """Check the server, the namespace, the workers, the stores, keys and settings, and find held invocations.

    Each problem is listed with the command that corrects it. The exit code is 1 if there is one.
    """
    ok, named = True, NamedStores(artifacts, memory, credentials)
    if (project := current_project()) and ctx.parent:
        verify_tables(ctx, project, ctx.parent.command)
    origins = list(list_origins(project, list_given(ctx)))
    settings = await asyncio.to_thread(_observe_settings)
    # Without usable keys, the other checks are still possible.
    encrypted = not any(file.problem for file in settings["files"] if file.check in _OF_ENCRYPTION)
    client = await ctx.connect(encrypted=encrypted)
    for finding in (*diagnose(await _observe(client, settings, agents or (), named)), *_list_settings(origins)):
        ok = ok and finding.ok
        mark = Text("ok      " if finding.ok else "problem ", style="green" if finding.ok else "bold red")
        record = {name: value for name, value in asdict(finding).items() if value is not None}
        ctx.out.result(record, Text.assemble(mark, f"{finding.check}: {finding.text}"))
        if finding.fix and not json:
            ctx.out.command("fix", [finding.fix])
    return Exit.OK if ok else Exit.FAILED


def _list_settings(origins: Sequence[tuple[str, str, str]]) -> Iterator[CheckResult]:
    """Yield where the value of each setting comes from, and last the settings that nothing sets."""
    for key, value, origin in origins:
        if origin != DEFAULT:
            yield CheckResult("setting", True, f"{key} = {value} ({origin})")
    unset = ", ".join(key for key, _, origin in origins if origin == DEFAULT)
    yield CheckResult("settings", True, f"the default applies to {unset}")


async def retry(ctx: CommandContext, id: InvocationId, json: AsJson = False) -> Exit:
    """Try what is held in an invocation and its called agents again now, instead of waiting for the next attempt."""
    client = await ctx.connect()
    await client.held.holds(id)  # reports an unknown ID
    try:
        tried = await client.held.retry(id)
    except RPCError as error:
        if error.status is not RPCStatusCode.UNIMPLEMENTED:
            raise
        raise CommandProblem(
            Exit.FAILED, "This server is too old to retry early. The next attempt still follows."
        ) from None
    if not tried:
        raise CommandProblem(Exit.UNKNOWN, f"Nothing in {id!r} is waiting for its next attempt.")
    for work in tried:
        record = {"invocation_id": work.workflow_id, "activity": work.activity}
        ctx.out.result(record, f"Trying {work.activity} of {work.workflow_id} again.")
    return Exit.OK


async def give_up(ctx: CommandContext, id: InvocationId, json: AsJson = False) -> Exit:
    """Fail what is held in an invocation and its called agents. A held tool call fails with an error for the model.

    If a model call is held, the invocation fails.
    """
    client = await ctx.connect()
    given_up = await client.held.give_up(id)
    if not given_up:
        raise CommandProblem(Exit.UNKNOWN, f"Nothing in {id!r} is held.")
    for hold in given_up:
        ctx.out.result(hold, f"Gave up: {terminal.format_hold(hold)}")
    return Exit.OK


async def _observe(
    client: AgentClient, settings: dict[str, Any], folders: Sequence[Path], named: NamedStores
) -> Observations:
    """Return everything that the checks need. If the namespace cannot be used, leave out what is in it."""
    service, namespace = client.temporal.workflow_service, client.temporal.namespace
    config = client.temporal.service_client.config
    info = await service.get_system_info(GetSystemInfoRequest())
    facts: dict[str, Any] = {
        "now": time.time(),
        "address": config.target_host,
        "is_local": config.target_host.rsplit(":", 1)[0].strip("[]") in LOCAL_HOSTS,
        "tls": bool(config.tls),
        "namespace": namespace,
        "task_queue": client.task_queue,
        "server_version": info.server_version,
        "version": waystation_version(),
        "adk_problem": find_adk_problem() if is_adk_installed() else None,
        "search_attributes": {},
        "backlogs": {},
        "unpolled_queues": {},
        "folder": str(Path.cwd()),
        "store": client.blobs.files.place,
        **settings,
        **await asyncio.to_thread(_observe_agents, folders),
    }
    try:
        described = await service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    except RPCError as error:
        return Observations(**facts, namespace_problem=error.message)
    retention = described.config.workflow_execution_retention_ttl
    facts["retention_s"] = retention.ToTimedelta().total_seconds() or None
    try:
        facts["search_attributes"] = await check_search_attributes(client.temporal)
    except RPCError as error:
        facts["search_attributes_problem"] = error.message
    queues = {kind: await describe_queue(client, client.task_queue, kind) for kind in QUEUE_TYPES}
    facts["pollers"] = [poller for kind, queue in queues.items() for poller in list_pollers(queue, kind)]
    facts["backlogs"] = {
        kind: (queue.stats.approximate_backlog_count, queue.stats.approximate_backlog_age.ToTimedelta().total_seconds())
        for kind, queue in queues.items()
    }
    facts["current_deployments"] = {
        kind: queue.versioning_info.current_deployment_version.build_id or None for kind, queue in queues.items()
    }
    facts["clock_ahead_s"] = await measure_clock(client)
    facts |= await _observe_stores(client, named)
    facts |= await _observe_invocations(
        client,
        is_searchable=all(facts["search_attributes"].get(name) for name in SEARCH_ATTRIBUTE_TYPES),
        now=time.time() - (facts["clock_ahead_s"] or 0.0),
    )
    return Observations(**facts)


async def describe_queue(client: AgentClient, queue: str, kind: str) -> DescribeTaskQueueResponse:
    """Return the server's description of a task queue for one kind of work."""
    request = DescribeTaskQueueRequest(
        namespace=client.temporal.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=QUEUE_TYPES[kind],
        report_stats=True,
    )
    return await client.temporal.workflow_service.describe_task_queue(request)


def list_pollers(queue: DescribeTaskQueueResponse, kind: str) -> list[Poller]:
    """Return the workers that poll a task queue for one kind of work."""
    return [
        Poller(
            identity=poller.identity,
            kind=kind,
            build=poller.deployment_options.build_id or poller.worker_version_capabilities.build_id,
            seen_at=poller.last_access_time.ToNanoseconds() / 1e9,
            deployment=(poller.deployment_options.deployment_name or None) if _is_versioned(poller) else None,
        )
        for poller in queue.pollers
    ]


def _is_versioned(poller: PollerInfo) -> bool:
    return poller.deployment_options.worker_versioning_mode == 2  # WORKER_VERSIONING_MODE_VERSIONED


async def measure_clock(client: AgentClient) -> float | None:
    """Return how far this machine's clock is at least ahead of the server's, or None if it is not known.

    The server reports when it received a poll. This one is on a task queue without tasks.
    """
    service, identity = client.temporal.workflow_service, f"doctor-{uuid.uuid4()}"
    request = PollWorkflowTaskQueueRequest(
        namespace=client.temporal.namespace, task_queue=TaskQueue(name=CLOCK_QUEUE), identity=identity
    )
    before = time.time()
    poll = asyncio.ensure_future(service.poll_workflow_task_queue(request, timeout=CLOCK_LIMIT))
    try:
        async with asyncio.timeout(CLOCK_LIMIT.total_seconds()):
            while not poll.done():
                queue = await describe_queue(client, CLOCK_QUEUE, "workflows")
                after = time.time()
                for poller in list_pollers(queue, "workflows"):
                    if poller.identity == identity:
                        return max(before - poller.seen_at, 0.0) or min(after - poller.seen_at, 0.0)
                await asyncio.sleep(CLOCK_POLL_S)
    except (RPCError, TimeoutError):
        return None  # for example, this account may not poll
    finally:
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
    return None


async def _observe_stores(client: AgentClient, named: NamedStores) -> dict[str, Any]:
    """Return whether the payload store and the named stores can be used, and how they differ from recorded ones."""
    files = client.blobs.files
    problems, services = await asyncio.to_thread(_open_stores, named)
    problem = files.unusable() or await probe(files, writing=False, limit_s=STORE_LIMIT_S)
    if named.artifacts is not None and not problems["--artifacts"]:
        artifacts = ObjectFiles(named.artifacts)
        if found := artifacts.unusable() or await probe(artifacts, writing=False, limit_s=STORE_LIMIT_S):
            problems["--artifacts"] = f"{artifacts.place}: {found}"
    usable = {name: service for name, service in services.items() if not problems.get(f"--{name}")}
    own = {} if problem else {"payloads": files}
    free = None
    if files.folder is not None:
        with suppress(OSError):
            free = (await asyncio.to_thread(shutil.disk_usage, files.folder)).free
    return {
        "store_problem": problem,
        "store_differences": await find_store_differences(
            client.temporal, client.task_queue, StoreIds(**own, **usable)
        ),
        "other_stores": problems,
        "free_bytes": free,
    }


def _open_stores(named: NamedStores) -> tuple[dict[str, str | None], dict[str, object]]:
    """Return, for each named store and that of user keys, why it cannot be used or None, and the opened stores."""
    from waystation.artifacts import ObjectStoreArtifactService
    from waystation.auth import CredentialStore, open_store
    from waystation.memory import open_memory

    problems: dict[str, str | None] = {"--artifacts": None} if named.artifacts else {}
    services: dict[str, object] = {"artifacts": ObjectStoreArtifactService(named.artifacts or DEFAULTS.artifacts)}
    for name, place, open_place in (
        ("memory", named.memory, open_memory),
        ("credentials", named.credentials, open_store),
    ):
        problem = _find_database_problem(place) if place else None
        try:
            services[name] = store = open_place(place or getattr(DEFAULTS, name))
            path = local_path(place or "")
            if place and not problem and isinstance(store, CredentialStore) and (path is None or path.exists()):
                store.read(("doctor",))  # requires the key that the store was written with
        except (StoreFailed, CredentialStoreError) as error:
            problem = problem or str(error)
        if place:  # The default is only compared, because the workers may use another store.
            problems[f"--{name}"] = problem
    return problems, services


def _find_database_problem(place: str) -> str | None:
    problem = find_database_problem(place)
    return f"{describe_place(place)}: {problem}" if problem and local_path(place) else problem


async def _observe_invocations(client: AgentClient, *, is_searchable: bool, now: float) -> dict[str, Any]:
    """Return the task queues that open invocations need, and the invocations that do not continue.

    `now` is the time by the server's clock.
    """

    async def is_polled(queue: str) -> bool:
        described = await describe_queue(client, queue, "workflows")
        return any(poller.is_active(now) for poller in list_pollers(described, "workflows"))

    is_open = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running'"
    newest, queues, ids = None, Counter[str](), list[str]()
    async for execution in client.temporal.list_workflows(is_open, limit=NEWEST):
        newest = newest or execution.start_time.timestamp()
        queues[execution.task_queue] += 1
        ids.append(execution.id)
    unpolled = {
        queue: count for queue, count in queues.items() if queue != client.task_queue and not await is_polled(queue)
    }
    failing = list[str]()
    with suppress(RPCError):  # older servers do not have the search attribute
        query = f"{is_open} AND TemporalReportedProblems IS NOT NULL"
        failing = [execution.id async for execution in client.temporal.list_workflows(query, limit=MAX_FAILING)]
    undecrypted = dict[tuple[str, str], str]()
    for id in ids[:MAX_FAILING]:
        with suppress(StoreFailed):  # another check reports it
            retries, _ = await fetch_retries(client.temporal, id)
            undecrypted |= {(retry.task_queue, retry.type): id for retry in retries if retry.is_undecrypted}
    held = [
        (invocation.invocation_id, terminal.format_held(invocation.invocation_id, hold))
        async for invocation in client.held.each(searchable=is_searchable)
        for hold in invocation.holds
    ]
    return {
        "newest_start": newest,
        "unpolled_queues": unpolled,
        "failing_tasks": failing,
        "undecrypted": undecrypted,
        "held": held,
    }


def _observe_settings() -> dict[str, Any]:
    """Check the extensions and the files of keys and settings, and find credentials for models."""
    from waystation.cli.command_table import COMMANDS
    from waystation.models.providers import PROVIDERS, is_own

    with load_worker():
        from waystation.activities import read_channels
        from waystation.activities.notifications import KINDS
        from waystation.worker.service_setup import load_identity
    create = "waystation identity init DIR, which creates an example for each kind of program"
    readers: list[tuple[str, str, Callable[[Path], object], str]] = [
        ("keys", WorkerKeys.variable, WorkerKeys.read, WorkerKeys.create_command),
        ("encryption keys", EncryptionKeys.variable, EncryptionKeys.read, EncryptionKeys.create_command),
        ("identity", IDENTITY_ENV, load_identity, create),
        ("identity of clients", CLIENT_IDENTITY_ENV, load_encrypter, create),
        ("identity of web", WEB_IDENTITY_ENV, load_encrypter, create),
        ("channels", CHANNELS_ENV, read_channels, "correct the file"),
        ("quotas", QUOTAS_ENV, read_quotas, "correct the file"),
    ]
    files = [
        _observe_file(check, file, read, fix, is_secret="keys" in check)
        for check, variable, read, fix in readers
        if (file := find_setting(variable))
    ]
    if key := os.environ.get("WAYSTATION_CREDENTIAL_KEY"):
        from waystation.auth.credential_service.credential_cipher import KEY_VARIABLE, parse_key

        fix = f'export {KEY_VARIABLE}="$(openssl rand -base64 32)", the same for all workers'
        files.append(_observe_file("credential key", KEY_VARIABLE, lambda _: parse_key(key, KEY_VARIABLE), fix))
    files += _observe_encryption()
    providers = dict.fromkeys(one.name for one in PROVIDERS if one.variables and one.has_credentials())
    own: dict[str, Callable[[str], bool]] = {
        extensions.COMMANDS: {name for panel in COMMANDS.values() for name in panel}.__contains__,
        extensions.CHANNELS: KINDS.__contains__,
        extensions.MODELS: is_own,
        extensions.STORES: OWN_SCHEMES.__contains__,
        extensions.ADAPTERS: lambda _: False,
    }
    return {"files": files, "providers": list(providers), "extension_problems": extensions.find_problems(own)}


def _observe_encryption() -> list[SettingsFile]:
    """Check the packages that encryption needs, and the store of user keys."""
    problems = list[SettingsFile]()
    keys, place = find_setting(EncryptionKeys.variable), find_setting(USER_KEYS_VARIABLE)
    if keys and find_spec("cryptography") is None:
        problem, fix = "cryptography is not installed", "pip install 'waystation[encryption]'"
        problems.append(SettingsFile(check="encryption", file=keys, problem=problem, fix=fix))
    elif place:
        problem, fix = None, f"set {USER_KEYS_VARIABLE} to the workers' store of user keys, and make it available"
        try:
            if find_user_keys() is None:
                problem, fix = f"{EncryptionKeys.variable} is not set", f"set {EncryptionKeys.variable}, too"
            else:
                problem = _find_database_problem(place)
        except StoreFailed as error:
            problem = str(error)
        except InvalidConfiguration:  # reported for the encryption keys
            return []
        problems.append(SettingsFile(check="user keys", file=describe_place(place), problem=problem, fix=fix))
    return problems


def _observe_file(
    check: str, file: str, read: Callable[[Path], object], fix: str, *, is_secret: bool = False
) -> SettingsFile:
    if is_secret and is_exposed(Path(file)):
        return SettingsFile(check=check, file=file, problem=f"other users can read {file}", fix=f"chmod 600 {file}")
    problem = None
    try:
        read(Path(file))
    except (InvalidConfiguration, CredentialStoreError) as error:
        problem = str(error)
    return SettingsFile(check=check, file=file, problem=problem, fix=fix)


def _observe_agents(folders: Sequence[Path]) -> dict[str, Any]:
    """Check the agents in the folders, and whether each has a usable model in this environment."""
    if not folders:
        return {"agents": {}}
    with load_worker():
        from waystation.activities import find_agents_without_model
        from waystation.worker.main import check
    registry, problems = check(folders)
    found = [*problems, *find_agents_without_model(registry)]
    return {"agents": {one.place: str(one.error) for one in found}, "checked_agents": len(registry.roots)}
