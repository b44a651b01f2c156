"""Set up a worker's services: its stores, the verification of approvers, and warnings about missing settings."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.activities import Channels, LinkSigner, TokenVerifier
from waystation.agents import LlmAgent
from waystation.agents.toolbox import tools_of
from waystation.apps import Registry
from waystation.artifacts import InMemoryArtifactService, ObjectStoreArtifactService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_service.store_location import open_store
from waystation.client import find_store_differences
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import Settings, Stores
from waystation.core.errors import InvalidConfiguration, StoreFailed, WaystationError
from waystation.memory import InMemoryMemoryService, open_memory
from waystation.project_file import find_setting
from waystation.storage import (
    STORE_VARIABLE,
    USER_KEYS_VARIABLE,
    Blobs,
    ObjectFiles,
    StoreIds,
    describe_place,
    find_database_problem,
    is_on_this_machine,
    is_postgres_url,
    payload_place,
    probe_all,
)
from waystation.tools import Services

if TYPE_CHECKING:
    from waystation.worker.span_export import SpanExport

log = structlog.get_logger("waystation.worker")


class WorkerStore(NamedTuple):
    """A store of a worker, under the names that logs, errors and options give it."""

    name: str
    contents: str
    setting: str
    place: str | Path
    has_files: bool = False
    """Whether it is a folder or an object store, and not a database."""

    def find_problem(self) -> str | None:
        """Return why the store cannot be used, as far as no server has to be asked, or None. Nothing is created."""
        return (
            ObjectFiles(self.place).unusable() if self.has_files else find_database_problem(self.place, is_asked=False)
        )


def list_stores(settings: Settings) -> list[WorkerStore]:
    """Return the stores of a worker."""
    stores, quotas = settings.stores, settings.quotas.store if settings.quotas else ""
    payloads, user_keys = payload_place(stores.payloads), find_setting(USER_KEYS_VARIABLE) or ""
    rows = (
        WorkerStore("payload_store", "Large payloads", f"--store, {STORE_VARIABLE}", payloads, has_files=True),
        WorkerStore("artifact_store", "Artifacts", "--artifacts", stores.artifacts, has_files=True),
        WorkerStore("memory_store", "Memories", "--memory", stores.memory),
        WorkerStore("credential_store", "Credentials", "--credentials", stores.credentials),
        WorkerStore("quota_store", "Quotas", "`store` in --quotas", quotas),
        WorkerStore("user_key_store", "User keys", USER_KEYS_VARIABLE, user_keys),
    )
    return [store for store in rows if store.place]


class StoreUnusable(WaystationError):
    """The worker cannot write to a store.

    Give the worker write access to the place, or set another one with the option that the message names.
    """

    def __init__(self, what: str, place: str, setting: str, problem: str) -> None:
        super().__init__(f"{what} cannot be stored in {place} ({setting}): {problem}")


def check_stores(settings: Settings) -> None:
    """Check that the stores are writable, so that problems are found before the first tool call.

    Raises:
        StoreUnusable: A store is not writable.
    """
    for store in list_stores(settings):
        if problem := store.find_problem():
            place = describe_place(store.place) if store.has_files else str(store.place)
            raise StoreUnusable(store.contents, place, store.setting, problem)


def create_store_checks(settings: Settings) -> Mapping[str, Callable[[], str | None]]:
    """Return the checks of a worker's stores, by name. Each PostgreSQL store has its own.

    A check returns a problem or None. Call it outside the event loop.
    """
    databases = {
        store.name: partial(find_database_problem, store.place)
        for store in list_stores(settings)
        if is_postgres_url(store.place)
    }
    return {"stores": partial(find_store_problem, settings), **databases}


def find_store_problem(settings: Settings) -> str | None:
    """Write to the stores of payloads and artifacts, and check that the other files appear to be writable.

    Return why a store cannot be used, or None. Call this outside the event loop.
    """
    try:
        check_stores(settings)
    except StoreUnusable as error:
        return str(error)
    return probe_all(write=(Blobs(settings.stores.payloads).files, ObjectFiles(settings.stores.artifacts)))


class StoresDiffer(WaystationError):
    """The worker's stores differ from those that open invocations recorded.

    Start the worker with the same stores as the others.
    """


def describe_stores(settings: Settings) -> dict[str, str]:
    """Return the location of each store, without credentials, for log events."""
    return {store.name: describe_place(store.place) for store in list_stores(settings)}


def is_local(client: Client) -> bool:
    """Return whether the server runs on this machine, judging by its address."""
    host = client.service_client.config.target_host.rsplit(":", 1)[0].strip("[]")
    return host in ("localhost", "127.0.0.1", "::1")


def create_store_ids(blobs: Blobs, services: Services) -> StoreIds:
    """Return an object that reads the IDs of a worker's stores."""
    return StoreIds(
        payloads=blobs.files, artifacts=services.artifacts, memory=services.memory, credentials=services.credentials
    )


async def compare_stores(
    client: Client, task_queue: str, settings: Settings, services: Services, *, strict: bool
) -> None:
    """Compare a worker's stores with those that the newest open invocation recorded. Log a warning for differences.

    If the server is on another machine, also log a warning for stores that only this machine can use.

    Raises:
        StoresDiffer: There is a difference, and `strict` is true.
    """
    local = [name for name, place in describe_stores(settings).items() if is_on_this_machine(place)]
    if local and not is_local(client):
        problem = "Workers on other machines cannot use these stores. Use an object store and PostgreSQL."
        log.warning("stores.local", stores=local, problem=problem)
    try:
        ids = create_store_ids(Blobs(settings.stores.payloads), services)
        problems = await find_store_differences(client, task_queue, ids)
    except (RPCError, StoreFailed) as error:
        log.warning("stores.not_compared", problem=str(error))
        return
    if problems and strict:
        raise StoresDiffer(" ".join(problems))
    for problem in problems:
        log.warning("store.differs", problem=problem)


def create_lasting_services(stores: Stores | None = None) -> Services:
    """Return services with persistent stores. Nothing is created on disk until a tool uses them.

    Raises:
        StoreFailed: The URL of a store is not supported, or required settings are missing.
        CredentialStoreError: The credential store does not exist.
    """
    stores = stores or Stores()
    return Services(
        artifacts=ObjectStoreArtifactService(stores.artifacts),
        memory=open_memory(stores.memory),
        credentials=open_store(stores.credentials),
    )


def create_temporary_services() -> Services:
    """Return services that keep everything in memory, for tests."""
    return Services(
        artifacts=InMemoryArtifactService(), memory=InMemoryMemoryService(), credentials=InMemoryCredentialService()
    )


def create_link_signer(file: Path, *, namespace: str) -> LinkSigner | None:
    """Return the function that signs links in notifications, or None if the identity file has no key for links.

    Raises:
        InvalidConfiguration: The identity file is not valid.
    """
    from waystation.approvers.identity import Configuration, Links

    configuration = Configuration.read(file)
    return Links.of(configuration, namespace=namespace).sign if configuration.links else None


def load_identity(file: Path) -> TokenVerifier:
    """Return the token verifier that an identity file configures.

    Raises:
        InvalidConfiguration: The identity file is not valid, or a required package is not installed.
    """
    try:
        from waystation.approvers.identity import WorkerIdentity
    except ModuleNotFoundError as error:
        problem = f"needs {error.name!r}; install it with: pip install 'waystation[identity]'"
        raise InvalidConfiguration(file, "", problem) from None
    return WorkerIdentity.load(file)


def create_span_export(*, content: bool) -> "SpanExport":
    """Return an export of spans over OTLP, which the spans that tools create also use.

    Raises:
        InvalidConfiguration: A required package is not installed.
    """
    try:
        from opentelemetry.trace import set_tracer_provider

        from waystation.worker.span_export import SpanExport
    except ModuleNotFoundError as error:
        problem = f"needs {error.name!r}; install it with: pip install 'waystation[telemetry]'"
        raise InvalidConfiguration("--traces", "", problem) from None
    export = SpanExport(content=content)
    set_tracer_provider(export.provider)
    return export


def list_settings_warnings(registry: Registry, channels: Channels | None, *, verifies: bool) -> Iterator[str]:
    """Yield a warning for each approval policy that needs verified identities or channels that this worker lacks.

    Args:
        registry: The agents to check.
        channels: The configured notification channels, or None.
        verifies: Whether the worker can verify identities.
    """
    for owner, policy in _policies(registry):
        if policy.must_verify and not verifies:
            yield (
                f"{owner} requires answers with a verified identity, but this worker cannot verify identities. "
                "Specify an identity file with --identity (`waystation identity init` writes one)."
            )
        names = {*(policy.notify or ()), *(name for level in policy.escalation for name in level.notify or ())}
        if unknown := sorted(name for name in names if channels is None or channels.get(name) is None):
            yield (
                f"{owner} notifies channels that are not configured: {', '.join(unknown)}. Add them to the file "
                "that --channels specifies."
            )


def list_requester_policies(registry: Registry) -> Iterator[str]:
    """Yield a sentence for each approval policy that requires invocations to be started with the requester's token."""
    for owner, policy in _policies(registry):
        if policy.not_requester and policy.must_verify:
            yield (
                f"{owner} excludes the requester. A call can be approved only if the invocation was started with the "
                "requester's token: `waystation run --token-file FILE`, or `token=` in the client."
            )


def find_verified_policies(registry: Registry) -> Iterator[str]:
    """Yield a description of each approval policy that requires verified approvers."""
    return (owner for owner, policy in _policies(registry) if policy.must_verify)


def _policies(registry: Registry) -> Iterator[tuple[str, ApprovalPolicy]]:
    for root in registry.roots.values():
        for agent in root.tree.values():
            if isinstance(agent, LlmAgent):
                for tool in tools_of(agent).values():
                    if tool.approval is not None:
                        yield f"The policy of tool {tool.name!r} of agent {agent.name!r}", tool.approval
                for number, rule in enumerate(agent.approval_rules, 1):
                    yield f"Approval rule {number} of agent {agent.name!r}", rule.policy
        for number, rule in enumerate(root.approval_rules, 1):
            yield f"Approval rule {number} of the app of {root.name!r}", rule.policy
