"""ADK's rules for artifacts, over any place that keeps versions by key.

The rules are here once, so that what is tested in memory holds in an object store.
"""

from __future__ import annotations

import abc
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from waystation.artifacts.base_artifact_service import USER_PREFIX, ArtifactVersion, BaseArtifactService
from waystation.core import InputValidationError, JsonObject, NotJson, encode, plain

if TYPE_CHECKING:
    from google.genai.types import Part

MAX_REFERENCES = 5
"""How many references are followed from one artifact to the next."""
Carrier = Literal["inlineData", "text", "fileData"]
_REFERENCE = "artifact://"
_REFERENCE_FORM = re.compile(
    r"artifact://apps/(?P<app>.+?)/users/(?P<user>.+?)(?:/sessions/(?P<session>.+?))?"
    r"/artifacts/(?P<name>.+)/versions/(?P<version>[0-9]{1,18})",
    re.DOTALL,
)


class Scope(NamedTuple):
    """Who shares artifacts: the sessions of a user, or the calls of one session."""

    app_name: str
    user_id: str
    session_id: str | None
    """None for what all sessions of the user share."""


class ArtifactKey(NamedTuple):
    """One artifact, whatever its versions."""

    scope: Scope
    filename: str
    """With the prefix `user:`, if it has one."""

    def uri(self, base: str, version: int) -> str:
        """Return ADK's address of a version below `base`, such as `memory:/`."""
        app, user, session = self.scope
        place = f"/sessions/{session}" if session is not None else ""
        return f"{base}/apps/{app}/users/{user}{place}/artifacts/{self.filename}/versions/{version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactContent:
    """What one version of an artifact holds. Nothing in it is shared with the Part that it was made from."""

    part: JsonObject
    """The Part as genai's JSON, without what is in `data`."""
    carrier: Carrier
    """Which field of the Part the data belongs into."""
    data: bytes | None
    """The bytes, or the text as UTF-8; None when the Part only says where the content is."""

    @property
    def mime_type(self) -> str | None:
        """The type of the content; unknown for a reference to another artifact."""
        if self.carrier == "text":
            return "text/plain"
        if _is_reference(self.file_uri):
            return None
        found: str | None = self.part[self.carrier].get("mimeType")
        return found

    @property
    def file_uri(self) -> str | None:
        """Where the content is, when it is elsewhere."""
        found: str | None = self.part["fileData"].get("fileUri") if self.carrier == "fileData" else None
        return found

    def digest(self, custom_metadata: JsonObject) -> str:
        """Return a digest that only the same content with the same metadata has."""
        said = hashlib.sha256(encode([self.part, self.carrier, custom_metadata]))
        said.update(b"\0" if self.data is None else b"\1" + self.data)
        return said.hexdigest()


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
        return await self._save(
            _key_of(app_name, user_id, filename, session_id), session_id, artifact, custom_metadata, None
        )

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
        return await self._save(
            _key_of(app_name, user_id, filename, session_id), session_id, artifact, custom_metadata, idempotency_key
        )

    async def _save(
        self,
        key: ArtifactKey,
        session_id: str | None,
        artifact: Part | dict[str, Any],
        custom_metadata: dict[str, Any] | None,
        idempotency_key: str | None,
    ) -> int:
        content = _content_of(artifact)
        if content.file_uri is not None and _is_reference(content.file_uri):
            # Checked now, so that who saves is told; and again when it is followed.
            _referenced(content.file_uri, key.scope._replace(session_id=session_id))
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
        key = _key_of(app_name, user_id, filename, session_id)
        reader = Scope(app_name, user_id, session_id)
        followed = 0
        while True:
            found = await self._found(key, version)
            content = None if found is None else await self._content(key, found)
            if content is None:
                return None
            if content.file_uri is None or not _is_reference(content.file_uri):
                return _part_of(content)
            if followed == MAX_REFERENCES:
                # ADK's literal.
                text = f"Exceeded maximum recursion depth resolving artifact reference: {content.file_uri}"
                raise InputValidationError(text)
            followed += 1
            key, version = _referenced(content.file_uri, reader)

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
        await self._delete(_key_of(app_name, user_id, filename, session_id))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of all versions, lowest first."""
        return await self._versions(_key_of(app_name, user_id, filename, session_id))

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return what is known of all versions, lowest first."""
        key = _key_of(app_name, user_id, filename, session_id)
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
        key = _key_of(app_name, user_id, filename, session_id)
        found = await self._found(key, version)
        return None if found is None else await self._about(key, found)

    async def _found(self, key: ArtifactKey, version: int | None) -> int | None:
        if version is None:
            versions = await self._versions(key)
            return versions[-1] if versions else None
        return version if version >= 0 else None


def _key_of(app_name: str, user_id: str, filename: str, session_id: str | None) -> ArtifactKey:
    """Return which artifact a caller means.

    Raises:
        InputValidationError: The name belongs to a session and none is given, or a name is not valid Unicode.
    """
    scope = scope_of(app_name, user_id, None if filename.startswith(USER_PREFIX) else session_id)
    if scope.session_id is None and not filename.startswith(USER_PREFIX):
        # ADK's literal.
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    _check("filename", filename)
    return ArtifactKey(scope, filename)


def scope_of(app_name: str, user_id: str, session_id: str | None) -> Scope:
    """Return the scope of a session, or of all sessions of the user.

    Raises:
        InputValidationError: A name is not valid Unicode.
    """
    _check("app_name", app_name)
    _check("user_id", user_id)
    _check("session_id", session_id or "")
    return Scope(app_name, user_id, session_id)


def _is_reference(uri: str | None) -> bool:
    """Whether file data with this URI stands for another artifact."""
    return bool(uri and uri.startswith(_REFERENCE))


def _referenced(uri: str, scope: Scope) -> tuple[ArtifactKey, int]:
    """Return the artifact and version that a reference names, for a caller who may see `scope`.

    Raises:
        InputValidationError: It is not a reference, or leads to another user, app or session.
    """
    form = _REFERENCE_FORM.fullmatch(uri)
    if form is None:
        raise InputValidationError(f"Invalid artifact reference URI: {uri}")
    app, user, session, name, version = form.groups()
    if (app, user) != (scope.app_name, scope.user_id):
        raise InputValidationError("Artifact references must stay within the same app and user scope.")
    if session is not None and session != scope.session_id:
        raise InputValidationError("Session-scoped artifact references must stay within the same session scope.")
    return _key_of(app, user, name, session), int(version)


def _check(field: str, name: str) -> None:
    if not isinstance(name, str):
        raise InputValidationError(f"{field} must be a string, not {type(name).__name__}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputValidationError(f"{field} {name!a} is not valid Unicode: it has a lone surrogate.") from None


def _content_of(artifact: Part | dict[str, Any]) -> ArtifactContent:
    """Take a Part apart.

    Raises:
        InputValidationError: It is not a Part, holds nothing that can be kept, or cannot be written.
    """
    from google.genai.types import Part  # takes a second to import; here somebody has a Part anyway

    part = Part.model_validate(artifact) if isinstance(artifact, dict) else artifact
    if not isinstance(part, Part):
        raise InputValidationError(
            f"An artifact is a google.genai.types.Part, not {type(part).__name__}; "
            "use types.Part.from_text(text=...) or types.Part.from_bytes(data=..., mime_type=...)."
        )
    if part.inline_data is not None:
        data = part.inline_data.data
        # Without the bytes, which would be written as base64.
        rest = part.model_copy(update={"inline_data": part.inline_data.model_copy(update={"data": None})})
        return ArtifactContent(part=_json(rest), carrier="inlineData", data=data)
    if part.text is not None:
        rest = part.model_copy(update={"text": None})
        return ArtifactContent(part=_json(rest), carrier="text", data=part.text.encode("utf-8", "surrogatepass"))
    if part.file_data is not None:
        return ArtifactContent(part=_json(part), carrier="fileData", data=None)
    raise InputValidationError("Not supported artifact type.")  # ADK's literal


def _part_of(content: ArtifactContent) -> Part:
    """Put a Part together again."""
    from google.genai.types import Blob, Part

    part = Part.model_validate(content.part)
    if content.data is None:
        return part
    if content.carrier == "text":
        return part.model_copy(update={"text": content.data.decode("utf-8", "surrogatepass")})
    blob = (part.inline_data or Blob()).model_copy(update={"data": content.data})
    return part.model_copy(update={"inline_data": blob})


def _json(part: Part) -> JsonObject:
    try:
        dumped: JsonObject = plain(part.model_dump(mode="json", by_alias=True, exclude_none=True))
    except (ValueError, NotJson) as error:
        raise InputValidationError(f"The artifact cannot be written as JSON: {error}") from None
    return dumped
