"""An in-memory artifact service for tests and experiments. The counterpart of ADK's class of the same name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystation.artifacts.object_store_artifact_service import ArtifactKey, ObjectStoreArtifactService
from waystation.storage import ObjectFiles

if TYPE_CHECKING:
    from google.genai.types import Part


class InMemoryArtifactService(ObjectStoreArtifactService):
    """Keeps artifacts in memory or, once a `Runner` uses the service, in a folder of the program's run."""

    def __init__(self) -> None:
        super().__init__("memory:///")
        self._is_kept = False
        self._saved: Counter[tuple[str, str, str | None, str]] = Counter()

    async def keep_in(self, folder: Path) -> None:
        """Move all artifacts into a folder, and save later ones there. If done already, do nothing.

        What the folder already contains is not changed: a resumed program saves its artifacts again.
        """
        if self._is_kept:
            return
        self._is_kept, source, self._files = True, self._files, ObjectFiles(folder)
        for path, _ in await source.below(""):
            await self._files.put(path, await source.get(path) or b"", new=True)

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save a new version. A program that was resumed does not save a version again; see `save_artifact_once`."""
        key = (app_name, user_id, session_id, filename)
        self._saved[key] += self._is_kept
        return await self.save_artifact_once(
            app_name=app_name,
            user_id=user_id,
            filename=filename,
            artifact=artifact,
            session_id=session_id,
            custom_metadata=custom_metadata,
            idempotency_key=f"program#{self._saved[key]}" if self._is_kept else None,
        )

    async def store_id(self) -> str | None:
        """Return None, because no other process can use this store."""
        return None

    def _uri(self, key: ArtifactKey, version: int, data: str) -> str:
        """Return the URI of a version in ADK's format."""
        app, user, session = key.scope
        place = f"/sessions/{session}" if session is not None else ""
        return f"memory://apps/{app}/users/{user}{place}/artifacts/{key.filename}/versions/{version}"
