"""Artifacts that are gone with the process, for tests and trials. ADK's class of that name."""

import threading
import time
from typing import NamedTuple

from waystation.artifacts.base_artifact_service import ArtifactVersion
from waystation.artifacts.keyed_artifact_service import ArtifactContent, ArtifactKey, KeyedArtifactService, Scope
from waystation.core import JsonObject


class _Version(NamedTuple):
    content: ArtifactContent
    about: ArtifactVersion
    token: str | None


class InMemoryArtifactService(KeyedArtifactService):
    """Keeps artifacts in a dictionary."""

    def __init__(self) -> None:
        self._artifacts: dict[ArtifactKey, list[_Version]] = {}
        # Sync tools have a thread, and may run an event loop of their own in it.
        self._lock = threading.Lock()

    async def _append(
        self, key: ArtifactKey, content: ArtifactContent, custom_metadata: JsonObject, token: str | None
    ) -> int:
        with self._lock:
            versions = self._artifacts.setdefault(key, [])
            for kept in versions:
                if token is not None and kept.token == token:
                    return kept.about.version
            about = ArtifactVersion(
                version=len(versions),
                canonical_uri=key.uri("memory:/", len(versions)),
                custom_metadata=custom_metadata,
                create_time=time.time(),
                mime_type=content.mime_type,
            )
            versions.append(_Version(content, about, token))
            return about.version

    async def _versions(self, key: ArtifactKey) -> list[int]:
        return list(range(len(self._artifacts.get(key, ()))))

    async def _about(self, key: ArtifactKey, version: int) -> ArtifactVersion | None:
        kept = self._kept(key, version)
        return kept and kept.about.model_copy(deep=True)

    async def _content(self, key: ArtifactKey, version: int) -> ArtifactContent | None:
        kept = self._kept(key, version)
        return kept and kept.content

    async def _names(self, scope: Scope) -> list[str]:
        return [key.filename for key in list(self._artifacts) if key.scope == scope]

    async def _delete(self, key: ArtifactKey) -> None:
        self._artifacts.pop(key, None)

    def _kept(self, key: ArtifactKey, version: int) -> _Version | None:
        versions = self._artifacts.get(key, [])
        return versions[version] if 0 <= version < len(versions) else None
