"""`waystation doctor` finds planted faults in real servers, workers, stores and files."""

import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio import activity
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import OperatorService, RPCError, RPCStatusCode
from temporalio.worker import Worker, WorkerDeploymentConfig

from tests.programs import command
from tests.server.approvals.asking import asker
from tests.server.conftest import Serve, empty_server
from tests.steps import start_and_wait, wait_until
from waystation.artifacts import ObjectStoreArtifactService
from waystation.auth import EncryptedFileCredentialService
from waystation.cli import diagnosis, operations
from waystation.client import SEARCH_ATTRIBUTE_TYPES, AgentClient, connect, wait_until_accepted
from waystation.core.payload import JsonObject
from waystation.embedded import EmbeddedServer
from waystation.key_set import EncryptionKeys
from waystation.tools import Services
from waystation.worker_keys import WorkerKeys

T = TypeVar("T")
DAY_S, HOUR_S = 86_400, 3_600
SILENT_S3 = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ALLOW_HTTP": "true",
}
GEMINI_AGENT = 'from waystation.agents import Agent\n\nroot_agent = Agent(name="keyless", model="gemini-2.5-flash")\n'


async def examine(server: EmbeddedServer, *options: str, doctor: Sequence[str] = ()) -> dict[str, JsonObject]:
    """Return the problems that `waystation doctor` finds, by check. A queue without workers is always one."""
    ran = await command("--address", server.address, *options, "doctor", "--json", *doctor)
    problems = {record["check"]: record for record in ran.records if not record["ok"]}
    assert ran.code == (1 if problems else 0), ran.err
    assert all(record["fix"] for record in problems.values())
    return problems


def new_queue() -> str:
    """Return the name of a task queue that nothing else uses."""
    return f"queue-{uuid.uuid4()}"


def write(path: Path, text: str, mode: int = 0o600) -> str:
    """Write a file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def plant_keys(tmp_path: Path, *, mode: int) -> str:
    """Write worker keys."""
    WorkerKeys.generate().create(tmp_path / "keys.json")
    (tmp_path / "keys.json").chmod(mode)
    return str(tmp_path / "keys.json")


SETTINGS: list[tuple[str, str, Callable[[Path], str], str, str]] = [
    ("missing worker keys", "WAYSTATION_KEYS", lambda tmp: str(tmp / "keys"), "keys", "identity keys"),
    ("damaged worker keys", "WAYSTATION_KEYS", lambda tmp: write(tmp / "k", "{}"), "keys", "identity keys"),
    ("worker keys that others read", "WAYSTATION_KEYS", lambda tmp: plant_keys(tmp, mode=0o644), "keys", "chmod 600"),
    ("broken identity", "WAYSTATION_IDENTITY", lambda tmp: write(tmp / "i.toml", "a = ["), "identity", "identity init"),
    (
        "wrong identity",
        "WAYSTATION_CLIENT_IDENTITY",
        lambda tmp: write(tmp / "w", ""),
        "identity of clients",
        "each kind",
    ),
    (
        "broken web identity",
        "WAYSTATION_WEB_IDENTITY",
        lambda tmp: write(tmp / "i", "a"),
        "identity of web",
        "each kind",
    ),
    ("broken channels", "WAYSTATION_CHANNELS", lambda tmp: write(tmp / "c.toml", "a = ["), "channels", "correct"),
    ("missing quotas", "WAYSTATION_QUOTAS", lambda tmp: str(tmp / "quotas.toml"), "quotas", "correct"),
    ("short credential key", "WAYSTATION_CREDENTIAL_KEY", lambda _: "short", "credential key", "openssl rand"),
]


@pytest.mark.parametrize(
    ("variable", "plant", "check", "fix"), [row[1:] for row in SETTINGS], ids=[row[0] for row in SETTINGS]
)
async def test_a_fault_in_a_setting_is_found(
    server: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    plant: Callable[[Path], str],
    check: str,
    fix: str,
) -> None:
    """The variable names a file that is missing, damaged or exposed, or has an invalid value."""
    monkeypatch.setenv(variable, plant(tmp_path))
    problems = await examine(server, "--task-queue", new_queue())
    assert fix in problems[check]["fix"]


def plant_credentials(tmp_path: Path) -> str:
    """Write a credential store with a key of its own."""
    store = EncryptedFileCredentialService(tmp_path / "credentials", key=b"a" * 32)
    store.write(("token",), "secret")
    return str(store.path)


STORES: list[tuple[str, str, Callable[[Path], str], str]] = [
    ("artifacts in a file", "--artifacts", lambda tmp: write(tmp / "artifacts", ""), "is a file"),
    ("artifacts at a closed port", "--artifacts", lambda _: "s3://bucket/artifacts", "s3://bucket"),
    ("memories at a closed port", "--memory", lambda _: "postgresql://127.0.0.1:1/memory", "postgresql://127.0.0.1:1"),
    ("memories in a folder", "--memory", str, "it is a folder"),
    ("memories of no known kind", "--memory", lambda _: "python:nothing:here", "python:nothing:here"),
    ("credentials with another key", "--credentials", plant_credentials, "key"),
    ("credentials at a closed port", "--credentials", lambda _: "postgresql://127.0.0.1:1/c", "127.0.0.1:1"),
]


@pytest.mark.parametrize(("option", "plant", "text"), [row[1:] for row in STORES], ids=[row[0] for row in STORES])
async def test_a_fault_in_a_named_store_is_found(
    server: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    plant: Callable[[Path], str],
    text: str,
) -> None:
    """A store named by an option is reported if this process cannot open it."""
    monkeypatch.setattr(operations, "STORE_LIMIT_S", 2.0)
    monkeypatch.setenv("WAYSTATION_CREDENTIAL_KEY", "b" * 32)
    for name, value in SILENT_S3.items():
        monkeypatch.setenv(name, value)
    problems = await examine(server, "--task-queue", new_queue(), doctor=[option, plant(tmp_path)])
    assert text in problems[f"store {option}"]["text"]


async def test_usable_stores_are_not_reported(tmp_path: Path) -> None:
    """Stores that do not exist yet are created at their first use, and not by the doctor."""
    names = ("artifacts", "memory", "credentials")
    options = [part for name in names for part in (f"--{name}", str(tmp_path / name))]
    async with empty_server() as server:
        problems = await examine(server, "--task-queue", new_queue(), doctor=options)
    assert set(problems) == {"workers for workflows", "workers for activities"}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("store", "text"), [("file", "is a file"), ("s3://bucket/payloads", "no answer|error"), ("ftp://host/x", "URL")]
)
async def test_a_payload_store_that_cannot_be_used_is_found(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, text: str
) -> None:
    """`doctor` reports a store that is a file instead of a folder, is unreachable, or has an unknown kind."""
    monkeypatch.setattr(operations, "STORE_LIMIT_S", 2.0)
    for name, value in SILENT_S3.items():
        monkeypatch.setenv(name, value)
    place = store if "://" in store else write(tmp_path / store, "")
    problem = (await examine(server, "--task-queue", new_queue(), "--store", place))["store"]
    assert re.search(text, problem["text"], re.IGNORECASE)
    assert "WAYSTATION_STORE" in problem["fix"]


async def test_a_store_of_user_keys_that_cannot_be_used_is_found(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`doctor` reports a store of user keys that is a folder instead of a file."""
    EncryptionKeys.generate().create(tmp_path / "encryption.json")
    monkeypatch.setenv("WAYSTATION_ENCRYPTION_KEYS", str(tmp_path / "encryption.json"))
    monkeypatch.setenv("WAYSTATION_USER_KEYS", str(tmp_path))
    problems = await examine(server, "--task-queue", new_queue())
    assert "it is a folder" in problems["user keys"]["text"]


@pytest.mark.parametrize(
    ("content", "text"),
    [(GEMINI_AGENT, "GOOGLE_API_KEY"), ("root_agent = 1 / 0\n", "ZeroDivisionError"), ("agent = None\n", "root_agent")],
    ids=["no model key", "import error", "no agent"],
)
async def test_an_unusable_agent_is_found(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, text: str
) -> None:
    """`doctor` reports an agent that has no usable model, cannot be imported or does not exist."""
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path / f"planted_{uuid.uuid4().hex}" / "agent.py", content)
    problems = await examine(server, "--task-queue", new_queue(), doctor=["--agents", str(tmp_path)])
    assert text in problems["agents"]["text"]


async def test_model_keys_are_not_confirmed_without_agents(server: EmbeddedServer) -> None:
    """Without agents, `doctor` does not know which keys are needed, and confirms none."""
    ran = await command("--address", server.address, "--task-queue", new_queue(), "doctor")
    assert "model keys: not checked; name the agents with --agents." in ran.out
    assert f"as in {Path.cwd()}; name others with --artifacts, --memory, --credentials" in ran.out


@asynccontextmanager
async def namespace(server: EmbeddedServer, *, retention_s: int = DAY_S) -> AsyncIterator[Client]:
    """Create a namespace without search attributes, and wait until it can be used."""
    name = f"doctor-{uuid.uuid4()}"
    client = await Client.connect(server.address, namespace=name)
    retention = Duration(seconds=retention_s)
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    await client.workflow_service.register_namespace(request)

    async def is_known() -> bool:
        try:
            return (await client.count_workflows()).count == 0
        except RPCError:
            return False

    await wait_until(is_known, "the namespace")
    yield client


@pytest.mark.slow
async def test_missing_search_attributes_are_found_and_named_by_a_dry_run(server: EmbeddedServer) -> None:
    """`setup --dry-run` creates nothing; `setup` creates them, and then none is missing."""
    async with namespace(server) as client:
        target = ("--address", server.address, "--namespace", client.namespace)
        problems = await examine(server, "--namespace", client.namespace, "--task-queue", new_queue())
        assert problems["search attributes"]["fix"] == "waystation setup"
        for _ in range(2):
            planned = await command(*target, "setup", "--dry-run")
            assert planned.code == 0
            assert f"Would create in namespace {client.namespace}: WaystationAgent" in planned.out
        [record] = (await command(*target, "setup", "--dry-run", "--json")).records
        assert record["missing"] == list(SEARCH_ATTRIBUTE_TYPES)
        assert (await command(*target, "setup")).code == 0
        [record] = (await command(*target, "setup", "--dry-run", "--json")).records
        assert record["missing"] == []
        problems = await examine(server, "--namespace", client.namespace, "--task-queue", new_queue())
        assert "search attributes" not in problems


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        (IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD, 0, "already has all search attributes"),
        (IndexedValueType.INDEXED_VALUE_TYPE_TEXT, 5, "--search-attribute WaystationAgent=Keyword"),
    ],
)
async def test_search_attributes_that_the_server_does_not_list_are_found_by_queries(
    server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    kind: IndexedValueType.ValueType,
    code: int,
    said: str,
) -> None:
    """Temporal Cloud lets some API keys neither list nor create them. `setup` names only those to create elsewhere."""

    async def refuse(*_: object, **__: object) -> None:
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")

    async with namespace(server) as client:
        types = {**SEARCH_ATTRIBUTE_TYPES, "WaystationAgent": kind}
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
        )
        await wait_until_accepted(client, list(types)[1:])
        monkeypatch.setattr(OperatorService, "list_search_attributes", refuse)
        monkeypatch.setattr(OperatorService, "add_search_attributes", refuse)
        target = ("--address", server.address, "--namespace", client.namespace)
        ran = await command(*target, "setup")
        assert (ran.code, said in ran.out + ran.err) == (code, True)
        problems = await examine(server, "--namespace", client.namespace, "--task-queue", new_queue())
        assert ("search attributes" in problems) is (code == 5)


async def test_a_search_attribute_of_another_type_is_found(server: EmbeddedServer) -> None:
    """`doctor` reports an attribute of the same name that something else created."""
    async with namespace(server) as client:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes={"WaystationAgent": IndexedValueType.INDEXED_VALUE_TYPE_INT},
            )
        )

        async def find() -> JsonObject | None:
            problems = await examine(server, "--namespace", client.namespace, "--task-queue", new_queue())
            problem = problems.get("search attributes")
            return problem if problem and "WaystationAgent must" in problem["text"] else None

        problem = await wait_until(find, "the attribute")
        assert "search-attribute remove --name WaystationAgent" in problem["fix"]


async def test_a_short_retention_is_found(server: EmbeddedServer) -> None:
    """`doctor` reports a namespace that keeps ended invocations only for an hour."""
    async with namespace(server, retention_s=HOUR_S) as client:
        problems = await examine(server, "--namespace", client.namespace, "--task-queue", new_queue())
        assert "only for 1 h" in problems["namespace"]["text"]


async def test_a_missing_namespace_is_found(server: EmbeddedServer) -> None:
    """Without its namespace, `doctor` can check nothing else."""
    problems = await examine(server, "--namespace", "absent", "--task-queue", new_queue())
    assert list(problems) == ["namespace"]
    assert problems["namespace"]["fix"] == "temporal operator namespace create absent"


async def test_a_server_at_a_closed_port_is_reported(tmp_path: Path) -> None:
    """The command ends with the address, before any check."""
    ran = await command("--address", "127.0.0.1:1", "doctor")
    assert (ran.code, "127.0.0.1:1" in ran.err) == (8, True)


async def test_a_remote_server_without_tls_is_found(server: EmbeddedServer) -> None:
    """An address of another machine without TLS is reported."""
    remote = SimpleNamespace(address=server.address.replace("127.0.0.1", "127.1"))
    problems = await examine(remote, "--task-queue", new_queue())  # type: ignore[arg-type]  # only the address is used
    assert "without TLS" in problems["server"]["text"]


@activity.defn
async def rest() -> None:
    """Do nothing."""


async def test_workers_of_another_version_and_missing_workers_are_found(server: EmbeddedServer) -> None:
    """`doctor` reports that the only worker polls for activities, and has another minor version."""
    client, queue = await Client.connect(server.address), new_queue()
    async with Worker(client, task_queue=queue, activities=[rest], build_id="0.99.1"):

        async def find() -> dict[str, JsonObject] | None:
            problems = await examine(server, "--task-queue", queue)
            return problems if "workers for activities" not in problems else None

        problems = await wait_until(find, "the worker")
        assert "waystation==0.99.1" in problems["versions"]["fix"]
        assert f"--task-queue {queue}" in problems["workers for workflows"]["fix"]


async def test_a_deployment_without_a_current_version_is_found(server: EmbeddedServer) -> None:
    """A deployment without a current version is reported, because its worker receives nothing."""
    client, queue = await Client.connect(server.address), new_queue()
    version = WorkerDeploymentVersion(f"doctor-{uuid.uuid4()}", "7")
    config = WorkerDeploymentConfig(version=version, use_worker_versioning=True)
    async with Worker(client, task_queue=queue, activities=[rest], deployment_config=config):

        async def find() -> JsonObject | None:
            problems = await examine(server, "--task-queue", queue)
            problem = problems.get("workers for activities")
            return problem if problem and "no current version" in problem["text"] else None

        problem = await wait_until(find, "the worker")
        assert f"--deployment-name {version.deployment_name} --build-id 7" in problem["fix"]


@pytest.mark.slow
async def test_invocations_without_a_worker_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invocations are reported as a backlog of the examined task queue, or as another task queue without workers."""
    monkeypatch.setattr(diagnosis, "MAX_BACKLOG_S", 0.0)
    async with empty_server() as server:
        queue = new_queue()
        client = AgentClient(await connect(address=server.address), task_queue=queue)
        await client.start("asker", "hi")

        async def find(*target: str, check: str) -> JsonObject | None:
            return (await examine(server, *target)).get(check)

        backlog = await wait_until(lambda: find("--task-queue", queue, check="backlog of workflows"), "the backlog")
        assert f"--task-queue {queue} --only workflows" in backlog["fix"]
        unpolled = await wait_until(lambda: find("--task-queue", new_queue(), check="task queues"), "the task queue")
        assert unpolled["fix"] == f"waystation worker --agents DIR --task-queue {queue}"


@pytest.mark.parametrize(
    ("purpose", "told"),
    [("x", "--store is the store"), ("x" * 400_000, "other, but the worker")],
    ids=["small", "large"],
)
async def test_differing_stores_are_found(serve: Serve, tmp_path: Path, purpose: str, told: str) -> None:
    """An open invocation recorded the worker's stores, in a reply that is itself in the store if it is large."""
    (tmp_path / "other").mkdir()
    async with serve(asker("stored_asker", purpose), verify=False) as env:
        invocation = await start_and_wait(env.client.start("stored_asker", "go"), "fc-1")
        target = ("--task-queue", env.client.task_queue, "--store")
        assert "stores of workers" not in await examine(env.server, *target, str(env.store))
        problem = (await examine(env.server, *target, str(tmp_path / "other")))["stores of workers"]
        assert told in problem["text"]
        await invocation.handle.terminate()


async def test_the_default_stores_of_another_folder_are_found(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unnamed stores are those of the current folder, as for the other commands."""
    monkeypatch.chdir(tmp_path)
    services = Services(artifacts=ObjectStoreArtifactService(tmp_path / "artifacts"))
    (tmp_path / "artifacts").mkdir()
    async with serve(asker("foldered"), services=services, verify=False) as env:
        invocation = await start_and_wait(env.client.start("foldered", "go"), "fc-1")
        target = ("--task-queue", env.client.task_queue, "--store", str(env.store))
        problems = await examine(env.server, *target)
        assert "--artifacts is an empty store" in problems["stores of workers"]["text"]
        named = await examine(env.server, *target, doctor=("--artifacts", str(tmp_path / "artifacts")))
        assert "stores of workers" not in named
        assert not (tmp_path / ".waystation").exists()
        await invocation.handle.terminate()


@pytest.mark.parametrize(("skew_s", "direction"), [(200.0, "ahead of"), (-200.0, "behind")])
async def test_a_wrong_clock_is_found_and_ends_no_worker(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, skew_s: float, direction: str
) -> None:
    """The server reports its time, and `doctor` computes the ages of polls from it."""
    clock = SimpleNamespace(time=lambda: time.time() + skew_s)
    async with empty_server() as server, serve(asker("timed_asker"), server=server) as env:
        options = ("--task-queue", env.client.task_queue, "--store", str(env.store))

        async def is_sound() -> bool:
            return not await examine(server, *options)

        await wait_until(is_sound, "the polls of the worker")
        monkeypatch.setattr(operations, "time", clock)
        problems = await examine(server, *options)
        assert list(problems) == ["clock"]
        assert f"3 min {direction} the server" in problems["clock"]["text"]
