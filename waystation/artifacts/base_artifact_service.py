"""The interface of artifact stores. Method names and signatures match ADK 2.13."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from google.genai.types import Part

USER_PREFIX = "user:"
"""Prefix of artifact names that are shared by all of a user's sessions."""


class ArtifactVersion(BaseModel):
    """The metadata of one version of an artifact."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)

    version: int
    """The version number. The first version is 0."""
    canonical_uri: str
    """The URI of the content."""
    custom_metadata: dict[str, Any] = {}
    """The metadata that was passed when the version was saved."""
    create_time: float
    """Unix timestamp in seconds."""
    mime_type: str | None = None


class BaseArtifactService(abc.ABC):
    """Stores versioned files by name.

    Names with the prefix `user:` are shared by all of the user's sessions. Other names belong to one session; methods
    that take such a `filename` raise `InputValidationError` if `session_id` is None.
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
        """Save a new version and return its number. Numbers start at 0 and increase by one.

        `artifact` is a genai Part, or the same as a dictionary with camelCase or snake_case keys. It must contain
        inline data, text or file data (a URI).

        Raises:
            InputValidationError: The Part contains none of these.
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
        """Save like `save_artifact`, or return the version if the same content was saved under `idempotency_key`.

        This method is not part of ADK. A service that does not override it always saves a new version.
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
        """Return one version of an artifact, by default the latest, or None if it does not exist."""

    @abc.abstractmethod
    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the sorted artifact names of the session and the user, or only the user's if `session_id` is None."""

    @abc.abstractmethod
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions of an artifact. The next save starts again at version 0."""

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete all artifacts of one session and return their names.

        Artifacts with the prefix `user:` are kept. This method is not part of ADK.
        """
        where = {"app_name": app_name, "user_id": user_id, "session_id": session_id}
        names = [name for name in await self.list_artifact_keys(**where) if not name.startswith(USER_PREFIX)]
        for name in names:
            await self.delete_artifact(**where, filename=name)
        return names

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has artifacts. This method is not part of ADK.

        Raises:
            NotImplementedError: This service cannot list them.
        """
        raise NotImplementedError("This artifact service does not list the apps of a user.")

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all artifacts of a user in an app, including those of sessions. Return their number.

        With `dry_run`, only count them. This method is not part of ADK.

        Raises:
            NotImplementedError: This service cannot delete them.
        """
        raise NotImplementedError("This artifact service does not delete all artifacts of a user.")

    async def store_id(self) -> str | None:
        """Return the ID of the store, "" if the store does not exist yet, or None if stores of this kind have no ID.

        Workers record the ID to detect that they use different stores. This method is not part of ADK.
        """
        return None

    @abc.abstractmethod
    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of all versions of an artifact in ascending order."""

    @abc.abstractmethod
    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the metadata of all versions of an artifact in ascending order of their numbers."""

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
        """Return the metadata of one version of an artifact, by default the latest, or None if it does not exist."""
