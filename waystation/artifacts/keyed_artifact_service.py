"""ADK's rules for artifacts, over any place that keeps versions by key.

The rules are here once, so that what is tested in memory holds in an object store.
"""

from __future__ import annotations

import abc
import hashlib
from typing import TYPE_CHECKING, Any

from waystation.artifacts.artifact_content import ArtifactContent, content_of, part_of
from waystation.artifacts.artifact_key import ArtifactKey, Scope, is_reference, key_of, referenced, scope_of
from waystation.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService
from waystation.core.errors import InputValidationError
from waystation.core.payload import JsonObject, plain

if TYPE_CHECKING:
    from google.genai.types import Part

MAX_REFERENCES = 5
"""How many references are followed from one artifact to the next."""


class KeyedArtifactService(BaseArtifactService):
    """A service that keeps versions by key. Methods that begin with an underscore are what a place has to offer."""

    @abc.abstractmethod
    async def _append(
        self, key: ArtifactKey, content: ArtifactContent, custom_metadata: JsonObject, token: str | None
    ) -> int:
        """Keep a new version and return its number, unless one was kept under the same token; then return that one's.

        Atomic: two that append at a time get two versions.
        """

    @abc.abstractmethod
    async def _versions(self, key: ArtifactKey) -> list[int]:
        """Return the numbers of the versions, lowest first."""

    @abc.abstractmethod
    async def _about(self, key: ArtifactKey, version: int) -> ArtifactVersion | None:
        """Return what is known of a version, or None when there is none."""

    @abc.abstractmethod
    async def _content(self, key: ArtifactKey, version: int) -> ArtifactContent | None:
        """Return a version, or None when there is none."""

    @abc.abstractmethod
    async def _names(self, scope: Scope) -> list[str]:
        """Return the names of the artifacts of exactly this scope."""

    @abc.abstractmethod
    async def _delete(self, key: ArtifactKey) -> None:
        """Delete all versions, if there are any."""

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
        """Save a new version; see `BaseArtifactService`. Metadata that is not JSON raises `NotJson`."""
        key = key_of(app_name, user_id, filename, session_id)
        return await self._save(key, session_id, artifact, custom_metadata, None)

    async def save_artifact_once(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
        idempotency_key: str,
    ) -> int:
        """Save a new version, unless the same content was saved under this key; see `BaseArtifactService`."""
        key = key_of(app_name, user_id, filename, session_id)
        return await self._save(key, session_id, artifact, custom_metadata, idempotency_key)

    async def _save(
        self,
        key: ArtifactKey,
        session_id: str | None,
        artifact: Part | dict[str, Any],
        custom_metadata: dict[str, Any] | None,
        idempotency_key: str | None,
    ) -> int:
        content = content_of(artifact)
        if content.file_uri is not None and is_reference(content.file_uri):
            # Checked now, so that who saves is told; and again when it is followed.
            referenced(content.file_uri, key.scope._replace(session_id=session_id))
        metadata: JsonObject = plain(custom_metadata or {})
        token = None
        if idempotency_key is not None:
            said = f"{idempotency_key}\0{content.digest(metadata)}"
            token = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return await self._append(key, content, metadata, token)

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> Part | None:
        """Return a version, or the latest; a reference is followed. See `BaseArtifactService`.

        Raises:
            InputValidationError: A reference leads out of the caller's scope, or to more than five others.
        """
        key = key_of(app_name, user_id, filename, session_id)
        reader = Scope(app_name, user_id, session_id)
        followed = 0
        while True:
            found = await self._found(key, version)
            content = None if found is None else await self._content(key, found)
            if content is None:
                return None
            if content.file_uri is None or not is_reference(content.file_uri):
                return part_of(content)
            if followed == MAX_REFERENCES:
                # ADK's literal.
                text = f"Exceeded maximum recursion depth resolving artifact reference: {content.file_uri}"
                raise InputValidationError(text)
            followed += 1
            key, version = referenced(content.file_uri, reader)

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the names of the session's artifacts and of the user's, sorted; without a session, the user's."""
        names = await self._names(scope_of(app_name, user_id, None))
        if session_id:
            names += await self._names(scope_of(app_name, user_id, session_id))
        return sorted(names)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions, if there are any. The next one saved is 0 again."""
        await self._delete(key_of(app_name, user_id, filename, session_id))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of all versions, lowest first."""
        return await self._versions(key_of(app_name, user_id, filename, session_id))

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return what is known of all versions, lowest first."""
        key = key_of(app_name, user_id, filename, session_id)
        found = [await self._about(key, version) for version in await self._versions(key)]
        return [about for about in found if about is not None]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return what is known of a version, or of the latest; None when there is none."""
        key = key_of(app_name, user_id, filename, session_id)
        found = await self._found(key, version)
        return None if found is None else await self._about(key, found)

    async def _found(self, key: ArtifactKey, version: int | None) -> int | None:
        if version is None:
            versions = await self._versions(key)
            return versions[-1] if versions else None
        return version if version >= 0 else None
