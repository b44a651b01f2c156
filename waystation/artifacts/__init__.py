"""Named files with versions. ADK's `google.adk.artifacts`."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService
    from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService
    from waystation.artifacts.object_store_artifact_service import (
        ObjectStoreArtifactService as ObjectStoreArtifactService,
    )
__all__ = [
    "ArtifactVersion",
    "BaseArtifactService",
    "InMemoryArtifactService",
    "ObjectStoreArtifactService",
]

_EXPORTS = {
    "waystation.artifacts.base_artifact_service": "ArtifactVersion BaseArtifactService",
    "waystation.artifacts.in_memory_artifact_service": "InMemoryArtifactService",
    "waystation.artifacts.object_store_artifact_service": "ObjectStoreArtifactService",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
