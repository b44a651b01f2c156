"""The services that a worker has unless it is given others."""

from pathlib import Path

from activities.artifacts import ObjectStoreArtifactService
from activities.credentials import InMemoryCredentialService, store_at
from activities.memory import SqliteMemoryService
from tools.services import CREDENTIALS, Services
from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService
from waystation.memory.in_memory_memory_service import InMemoryMemoryService

ARTIFACTS = Path(".waystation") / "artifacts"
MEMORY = Path(".waystation") / "memory.db"


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
