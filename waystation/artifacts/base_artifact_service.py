"""What keeps artifacts, as tools see it. Method names and signatures are ADK's; source: adk-semantics 12.1."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from google.genai.types import Part

USER_PREFIX = "user:"
"""What the names of artifacts begin with that all sessions of a user share."""


class ArtifactVersion(BaseModel):
    """What is known of one version of an artifact, without its content."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)

    version: int
    """0 for the first."""
    canonical_uri: str
    """Where the content is."""
    custom_metadata: dict[str, Any] = {}
    """What the saver said about it."""
    create_time: float
    """Seconds since 1970."""
    mime_type: str | None = None


class BaseArtifactService(abc.ABC):
    """Named files with versions.

    A name that begins with `user:` is shared by all sessions of the user; any other belongs to one session. All
    methods raise `InputValidationError` for such another name when no session is given.
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

        `artifact` is a genai Part, or the same as a dictionary in either case style: inline data, text, or file data,
        whose content is elsewhere.

        Raises:
            InputValidationError: The Part holds none of these.
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
        """Save as `save_artifact` does, unless the same was saved under this key; then return that version.

        Not ADK's. A service that does not override it saves once more.
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
        """Return a version, or the latest; None when there is none."""

    @abc.abstractmethod
    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the names of the session's artifacts and of the user's, sorted; without a session, the user's."""

    @abc.abstractmethod
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions, if there are any. The next one saved is 0 again."""

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete all artifacts of one session, and return their names. Those of the user (`user:`) stay. Not ADK's."""
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
        """Return what is known of all versions, lowest first."""

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
        """Return what is known of a version, or of the latest; None when there is none."""
