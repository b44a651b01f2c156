"""An in-memory artifact service for tests and experiments. The counterpart of ADK's class of the same name."""

from waystation.artifacts.object_store_artifact_service import ArtifactKey, ObjectStoreArtifactService


class InMemoryArtifactService(ObjectStoreArtifactService):
    """Keeps artifacts in memory."""

    def __init__(self) -> None:
        super().__init__("memory:///")

    async def store_id(self) -> str | None:
        """Return None, because no other process can use this store."""
        return None

    def _uri(self, key: ArtifactKey, version: int, data: str) -> str:
        """Return the URI of a version in ADK's format."""
        app, user, session = key.scope
        place = f"/sessions/{session}" if session is not None else ""
        return f"memory://apps/{app}/users/{user}{place}/artifacts/{key.filename}/versions/{version}"
