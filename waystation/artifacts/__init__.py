"""Artifacts: named files with versions. Where ADK has `google.adk.artifacts`."""

import importlib
from typing import TYPE_CHECKING

from waystation.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService

if TYPE_CHECKING:
    from activities.artifacts import ObjectStoreArtifactService
    from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService

__all__ = ["ArtifactVersion", "BaseArtifactService", "InMemoryArtifactService", "ObjectStoreArtifactService"]

_MODULE_OF = {
    "InMemoryArtifactService": "waystation.artifacts.in_memory_artifact_service",
    # It does I/O, so it lives on that side of the tree.
    "ObjectStoreArtifactService": "activities.artifacts",
}

if not TYPE_CHECKING:  # where it would make every misspelt name acceptable

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(module), name)
        return found
