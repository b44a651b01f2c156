from waystation.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService
from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService
from waystation.artifacts.object_store_artifact_service import ObjectStoreArtifactService

__all__ = [
    "ArtifactVersion",
    "BaseArtifactService",
    "InMemoryArtifactService",
    "ObjectStoreArtifactService",
]
