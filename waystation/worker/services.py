"""What a worker uses as it is configured: stores, identities of approvers; and what its agents need beyond that."""

import os
from collections.abc import Iterator
from pathlib import Path

from waystation.activities import Channels, SignsLinks, Verifies
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry
from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService
from waystation.artifacts.object_store_artifact_service import ObjectStoreArtifactService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_service.store_location import store_at
from waystation.core import IDENTITY_ENV, ApprovalPolicy, InvalidConfiguration, Stores, WaystationError
from waystation.memory.in_memory_memory_service import InMemoryMemoryService
from waystation.memory.sqlite_memory_service import SqliteMemoryService
from waystation.storage import STORE_VARIABLE, Blobs, ObjectFiles, unusable
from waystation.tools.services import Services
from waystation.tools.toolbox import tools_of


class StoreUnusable(WaystationError):
    """A store of the worker cannot be written."""

    def __init__(self, what: str, place: str, setting: str, problem: str) -> None:
        super().__init__(f"{what} cannot be kept in {place} ({setting}): {problem}")


def check_stores(stores: Stores) -> None:
    """Check that the stores can be written, before the first tool call finds out.

    Raises:
        StoreUnusable: One cannot.
    """
    payloads, artifacts, memory = Blobs(stores.payloads), ObjectFiles(stores.artifacts), Path(stores.memory)
    for what, setting, place, problem in (
        ("Large payloads", f"--store, {STORE_VARIABLE}", payloads.files.place, payloads.files.unusable()),
        ("Artifacts", "--artifacts", artifacts.place, artifacts.unusable()),
        ("Memories", "--memory", str(memory), _no_file(memory)),
    ):
        if problem:
            raise StoreUnusable(what, place, setting, problem)


def _no_file(path: Path) -> str | None:
    if path.is_dir():
        return "it is a folder; name a file."
    if path.exists():
        return None if os.access(path, os.W_OK) else "it may not be written by this process; allow it."
    return unusable(path.parent)


def lasting_services(stores: Stores | None = None) -> Services:
    """Return services that outlive the worker. Nothing is created on disk before a tool uses them.

    Raises:
        StoreFailed: There is no object store for such a URL, or it lacks what it needs.
        CredentialStoreError: There is no such credential store.
    """
    stores = stores or Stores()
    return Services(
        artifacts=ObjectStoreArtifactService(stores.artifacts),
        memory=SqliteMemoryService(stores.memory),
        credentials=store_at(stores.credentials),
    )


def temporary_services() -> Services:
    """Return services that live in memory, for tests."""
    return Services(
        artifacts=InMemoryArtifactService(), memory=InMemoryMemoryService(), credentials=InMemoryCredentialService()
    )


def links_of(file: Path | None, *, namespace: str) -> SignsLinks | None:
    """Return what signs links by the configuration that `identity_of` reads; None when it has no key for that.

    Raises:
        InvalidConfiguration: It cannot be used.
    """
    name = file or os.environ.get(IDENTITY_ENV)
    if not name:
        return None
    from waystation.identity import Configuration, Links

    configuration = Configuration.read(name)
    return Links.of(configuration, namespace=namespace).sign if configuration.links else None


def identity_of(file: Path | None) -> Verifies | None:
    """Return what a file configures, or the one that the environment names; None when there is none.

    Raises:
        InvalidConfiguration: It cannot be used.
    """
    name = file or os.environ.get(IDENTITY_ENV)
    if not name:
        return None
    try:
        from waystation.identity import WorkerIdentity
    except ModuleNotFoundError as error:
        problem = f"needs {error.name!r}; install it with: pip install 'waystation[identity]'"
        raise InvalidConfiguration(name, "", problem) from None
    return WorkerIdentity.load(name)


def settings_warnings(registry: Registry, channels: Channels | None, *, verifies: bool) -> Iterator[str]:
    """Yield a sentence for each policy that cannot be kept here; `verifies` is whether identities can be proven."""
    for where, policy in _policies(registry):
        if policy.must_verify and not verifies:
            yield (
                f"{where} takes only answers with a verified identity, and nobody can prove theirs here; name a file "
                "with --identity (`waystation identity init` writes one)."
            )
        named = {*policy.notify, *(name for level in policy.escalation for name in level.notify)}
        if unknown := sorted(name for name in named if channels is None or channels.get(name) is None):
            yield (
                f"{where} has channels told that are not configured here: {', '.join(unknown)}; add them to the file "
                "that --channels names."
            )


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
            yield f"Approval rule {number} of the app of {root.agent.name!r}", rule.policy
