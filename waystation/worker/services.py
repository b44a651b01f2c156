"""The services of a worker, as its settings say."""

import os
from pathlib import Path

from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService
from waystation.artifacts.object_store_artifact_service import ObjectStoreArtifactService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_service.store_location import store_at
from waystation.core.errors import WaystationError
from waystation.core.settings import Stores
from waystation.memory.in_memory_memory_service import InMemoryMemoryService
from waystation.memory.sqlite_memory_service import SqliteMemoryService
from waystation.storage.blobs import STORE_VARIABLE, Blobs
from waystation.storage.object_files import ObjectFiles, unusable
from waystation.tools.services import Services


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
        ("Large payloads", f"--store, {STORE_VARIABLE}", payloads.place, payloads.unusable()),
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
