"""The services that a worker has unless it is given others."""

import os
from pathlib import Path

from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService
from waystation.artifacts.object_store_artifact_service import ObjectStoreArtifactService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_service.store_location import store_at
from waystation.core.errors import WaystationError
from waystation.memory.in_memory_memory_service import InMemoryMemoryService
from waystation.memory.sqlite_memory_service import SqliteMemoryService
from waystation.storage.blobs import STORE_VARIABLE, Blobs
from waystation.storage.object_files import ObjectFiles, unusable
from waystation.tools.services import CREDENTIALS, Services

ARTIFACTS = Path(".waystation") / "artifacts"
MEMORY = Path(".waystation") / "memory.db"


class PlaceUnusable(WaystationError):
    """A worker cannot keep what it will have to keep."""

    def __init__(self, what: str, place: str, setting: str, problem: str) -> None:
        super().__init__(f"{what} cannot be kept in {place} ({setting}): {problem}")


def check_places(store: str | Path | None, artifacts: str | Path, memory: Path) -> None:
    """Look whether a worker may keep what it is going to keep; else whoever is the first to use it would find out.

    Raises:
        PlaceUnusable: It may not.
    """
    payloads, kept = Blobs(store), ObjectFiles(artifacts)
    for what, setting, place, problem in (
        ("Large payloads", f"--store, {STORE_VARIABLE}", payloads.place, payloads.unusable()),
        ("Artifacts", "--artifacts", kept.place, kept.unusable()),
        ("Memories", "--memory", str(memory), _no_file(memory)),
    ):
        if problem:
            raise PlaceUnusable(what, place, setting, problem)


def _no_file(path: Path) -> str | None:
    if path.is_dir():
        return "it is a folder; name a file."
    if path.exists():
        return None if os.access(path, os.W_OK) else "it may not be written by this process; allow it."
    return unusable(path.parent)


def kept_services(
    *, artifacts: str | Path = ARTIFACTS, memory: Path = MEMORY, credentials: str | Path = CREDENTIALS
) -> Services:
    """Return services that outlive the worker; nothing is made on disk before a tool uses them.

    Args:
        artifacts: A folder, or the URL of an object store such as `s3://bucket/prefix`.
        memory: A file.
        credentials: A file, which is encrypted, or another store; see `store_at`.

    Raises:
        StoreFailed: There is no object store for such a URL, or it lacks what it needs.
        CredentialStoreError: There is no such credential store.
    """
    return Services(
        artifacts=ObjectStoreArtifactService(artifacts),
        memory=SqliteMemoryService(memory),
        credentials=store_at(credentials),
    )


def fleeting_services() -> Services:
    """Return services that are gone with the process, for tests."""
    return Services(
        artifacts=InMemoryArtifactService(), memory=InMemoryMemoryService(), credentials=InMemoryCredentialService()
    )
