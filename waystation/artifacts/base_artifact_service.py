"""The interface of artifact stores. Method names and signatures are ADK's; source: adk-semantics 12.1."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from google.genai.types import Part

USER_PREFIX = "user:"
"""Prefix of artifacts that all sessions of a user share."""


class ArtifactVersion(BaseModel):
    """The metadata of one version of an artifact."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)

    version: int
    """0 for the first."""
    canonical_uri: str
    """The location of the content."""
    custom_metadata: dict[str, Any] = {}
    """The metadata from the save."""
    create_time: float
    """Seconds since 1970."""
    mime_type: str | None = None


class BaseArtifactService(abc.ABC):
    """Named files with versions.

    All sessions of a user share the names with the prefix `user:`; other names belong to one session. All methods raise
    `InputValidationError` for a session's name without a session.
    """

    @abc.abstractmethod
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
        """Save a new version and return its number: 0 for the first, then one more each time.

        `artifact` is a genai Part or a dictionary in either case style, with inline data, text, or file data (a URI).

        Raises:
            InputValidationError: The Part has none of these.
        """

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
        """Save like `save_artifact`, unless the same content was saved under this key; then return that version.

        Not in ADK. A service that does not override it saves another version.
        """
        return await self.save_artifact(
            app_name=app_name,
            user_id=user_id,
            filename=filename,
            artifact=artifact,
            session_id=session_id,
            custom_metadata=custom_metadata,
        )

    @abc.abstractmethod
    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> Part | None:
        """Return a version, by default the latest; None if it does not exist."""

    @abc.abstractmethod
    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the sorted names of the session's and the user's artifacts; without a session only the user's."""

    @abc.abstractmethod
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions, if there are any. The next save creates version 0 again."""

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete all artifacts of one session; return their names. The user's (`user:`) stay. Not in ADK."""
        where = {"app_name": app_name, "user_id": user_id, "session_id": session_id}
        names = [name for name in await self.list_artifact_keys(**where) if not name.startswith(USER_PREFIX)]
        for name in names:
            await self.delete_artifact(**where, filename=name)
        return names

    @abc.abstractmethod
    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of all versions, lowest first."""

    @abc.abstractmethod
    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the metadata of all versions, lowest first."""

    @abc.abstractmethod
    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the metadata of a version, by default the latest; None if it does not exist."""
