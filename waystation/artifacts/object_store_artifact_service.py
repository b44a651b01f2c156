"""Artifacts in an object store: a local folder, S3, Google Cloud Storage or Azure.

Each artifact is a folder. Each version consists of a content file and a record, `<version>.json`. The record is written
last, and only if that file does not exist yet. As a result, versions are never incomplete, concurrent saves get
different numbers, and any program can open the content files.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from pydantic import BaseModel

from waystation.artifacts.base_artifact_service import USER_PREFIX, ArtifactVersion, BaseArtifactService
from waystation.core.errors import InputValidationError, NotJson
from waystation.core.payload import JsonObject, encode, to_plain_json
from waystation.storage import ObjectFiles, Owner

if TYPE_CHECKING:
    from google.genai.types import Part

MAX_REFERENCES = 5
"""Maximum number of references to follow from one artifact to the next. Longer chains raise an error."""
MAX_SEGMENT_CHARS = 120
"""Maximum length of an escaped name in a path. Longer names are replaced by their hash. A path has up to four names,
and must stay below S3's limit of 1,024 bytes.
"""
ABANDONED_AFTER = timedelta(days=1)
"""Age at which a content file without a record counts as abandoned. A newer one may belong to a save in progress."""
Carrier = Literal["inlineData", "text", "fileData"]
_REFERENCE = "artifact://"
_REFERENCE_FORM = re.compile(
    r"artifact://apps/(?P<app>.+?)/users/(?P<user>.+?)(?:/sessions/(?P<session>.+?))?"
    r"/artifacts/(?P<name>.+)/versions/(?P<version>[0-9]{1,18})",
    re.DOTALL,
)
_RECORD = re.compile(r"([0-9]{1,18})\.json")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")
_HASHED = "=="
_EMPTY = "="


class Scope(NamedTuple):
    """The app, user and session that artifacts belong to."""

    app_name: str
    user_id: str
    session_id: str | None
    """The session ID, or None for artifacts that all of the user's sessions share."""

    @property
    def user_folder(self) -> str:
        """The folder that contains everything of the user in the app."""
        return f"{_segment(self.app_name)}/users/{_segment(self.user_id)}"

    @property
    def folder(self) -> str:
        """The folder that contains one folder per artifact."""
        user = self.user_folder
        return f"{user}/files" if self.session_id is None else f"{user}/sessions/{_segment(self.session_id)}"


class ArtifactKey(NamedTuple):
    """The scope and name of one artifact."""

    scope: Scope
    filename: str
    """The artifact's name, including the prefix `user:` if it has one."""

    @property
    def folder(self) -> str:
        """The folder that contains the artifact's versions."""
        shared = self.scope.session_id is None
        return f"{self.scope.folder}/{_segment(self.filename.removeprefix(USER_PREFIX) if shared else self.filename)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactContent:
    """The content of one version of an artifact. It shares no objects with the Part it was made from."""

    part: JsonObject
    """The Part as JSON in genai's format, without the data itself."""
    carrier: Carrier
    """The field of the Part that holds the data or the URI."""
    data: bytes | None
    """The bytes, or the text as UTF-8, or None for file data, which has only a URI."""

    @property
    def mime_type(self) -> str | None:
        """The MIME type of the content, or None if it is unknown or the content refers to another artifact."""
        if self.carrier == "text":
            return "text/plain"
        mime_type: str | None = None if self.reference else self.part[self.carrier].get("mimeType")
        return mime_type

    @property
    def reference(self) -> str | None:
        """The URI of the artifact that this content refers to, or None if it is not a reference."""
        uri: str = (self.part["fileData"].get("fileUri") or "") if self.carrier == "fileData" else ""
        return uri if uri.startswith(_REFERENCE) else None

    def token(self, idempotency_key: str, custom_metadata: JsonObject) -> str:
        """Return a token for this key, content and metadata. Saving the same content again yields the same token."""
        digest = hashlib.sha256(encode([self.part, self.carrier, custom_metadata]))
        digest.update(b"\0" if self.data is None else b"\1" + self.data)
        keyed = f"{idempotency_key}\0{digest.hexdigest()}"
        return hashlib.sha256(keyed.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Record(BaseModel):
    """The contents of a version's record file."""

    name: str
    part: JsonObject
    carrier: Carrier
    data: str
    """The name of the content file in the same folder."""
    is_elsewhere: bool = False
    """Whether the content file is empty because the Part has only a URI."""
    mime_type: str | None = None
    create_time: float
    custom_metadata: JsonObject = {}
    saved_by: str = ""
    """The idempotency key of the call that saved the version. It begins with the ID of the call's invocation."""


class _Listing(NamedTuple):
    """The files in an artifact's folder."""

    versions: Sequence[int]
    others: dict[str, datetime]
    """The files that are not records, with the times they were written."""


class ObjectStoreArtifactService(BaseArtifactService):
    """Stores artifacts in an object store. Any number of processes may share the store.

    Names cannot escape their folder. The name of an app, user, session or file becomes a single path segment of
    letters, digits, `-`, `_` and `.`, with all other bytes escaped as `=XX`. A name that is too long is replaced by its
    hash.
    """

    def __init__(self, url_or_path: str | Path) -> None:
        """Use the store at `url_or_path`, which is a folder (created when first needed) or a URL.

        Supported URLs are `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder` and, for tests, `memory:///`.
        Credentials and endpoints are read from the environment, as with the cloud provider's own tools.

        Raises:
            StoreFailed: The URL is not supported, or required settings are missing.
        """
        self._files = ObjectFiles(url_or_path)
        self.folder = self._files.folder
        """The local folder, or None if the artifacts are elsewhere."""
        if self.folder is None:
            _ = self._files.store  # an invalid URL must fail when the worker starts

    @property
    def place(self) -> str:
        """The store's URL without credentials."""
        return self._files.place

    async def store_id(self) -> str | None:
        """Return the ID of the store, or "" for a folder that does not exist yet."""
        return await self._files.store_id()

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
        """Save a new version; see `BaseArtifactService`.

        Raises:
            NotJson: The metadata cannot be converted to JSON.
        """
        return await self.save_artifact_once(
            app_name=app_name,
            user_id=user_id,
            filename=filename,
            artifact=artifact,
            session_id=session_id,
            custom_metadata=custom_metadata,
            idempotency_key=None,
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
        idempotency_key: str | None,
    ) -> int:
        """Save a new version unless the same content and metadata were saved under `idempotency_key`.

        If the key is None, always save a new version. See `BaseArtifactService`.
        """
        key = _key_of(app_name, user_id, filename, session_id)
        content = await asyncio.to_thread(_content_of, artifact)
        if content.reference:
            # Check the reference now so that the caller gets the error. It is checked again when it is followed.
            _parse_reference(content.reference, Scope(app_name, user_id, session_id))
        metadata: JsonObject = to_plain_json(custom_metadata or {})
        token = secrets.token_hex(16) if idempotency_key is None else content.token(idempotency_key, metadata)
        suffix = PurePosixPath(filename).suffix
        data = f"data-{token}{suffix if _SUFFIX.fullmatch(suffix) else ''}"
        listing = await self._list(key)
        if data in listing.others:
            for version in reversed(listing.versions):
                if await _is_saved(self._files, key, version, data):
                    return version
        record = _Record(
            name=filename,
            part=content.part,
            carrier=content.carrier,
            data=data,
            is_elsewhere=content.data is None,
            mime_type=content.mime_type,
            create_time=time.time(),
            custom_metadata=metadata,
            saved_by=idempotency_key or "",
        )
        # Write the file even if it is empty: a repeated save uses it to find the first one.
        owner, text = Owner(app_name, user_id), record.model_dump_json().encode()
        await self._files.put(f"{key.folder}/{data}", content.data or b"", owner=owner)
        version = listing.versions[-1] + 1 if listing.versions else 0
        while not await self._files.put(f"{key.folder}/{version}.json", text, new=True, owner=owner):
            if await _is_saved(self._files, key, version, data):
                # Either the store's client retried after losing a response, or another attempt saved this version.
                break
            version += 1
        return version

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> Part | None:
        """Return one version, by default the latest, or None if it does not exist. References are followed.

        Raises:
            InputValidationError: A reference is invalid or outside the caller's scope, or there are more than five in
                a row.
        """
        key = _key_of(app_name, user_id, filename, session_id)
        uri = ""
        for _ in range(MAX_REFERENCES + 1):
            content = await self._read_content(key, version)
            if content is None or not content.reference:
                return None if content is None else await asyncio.to_thread(_part_of, content)
            uri = content.reference
            key, version = _parse_reference(uri, Scope(app_name, user_id, session_id))
        # The same message as in ADK.
        raise InputValidationError(f"Exceeded maximum recursion depth resolving artifact reference: {uri}")

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the sorted artifact names of the session and the user, or only the user's if `session_id` is None."""
        names = await _list_names(self._files, _scope_of(app_name, user_id, None))
        if session_id:
            names += await _list_names(self._files, _scope_of(app_name, user_id, session_id))
        return sorted(names)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions of an artifact. The next save starts again at version 0."""
        key = _key_of(app_name, user_id, filename, session_id)
        listing = await self._list(key)
        # Keep newer content files without a record, because they may belong to a save in progress.
        cutoff = datetime.now(UTC) - ABANDONED_AFTER
        data = {name for name, written in listing.others.items() if written < cutoff}
        for version in reversed(listing.versions):
            if record := await _read_record(self._files, key.folder, version):
                data.add(record.data)
            await self._files.remove(f"{key.folder}/{version}.json")
        await asyncio.gather(*(self._files.remove(f"{key.folder}/{name}") for name in sorted(data)))

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete all files of one session, including content without a record, and return the artifact names."""
        scope = _scope_of(app_name, user_id, session_id)
        names = sorted(await _list_names(self._files, scope))
        await _remove_files(self._files, scope.folder, [path for path, _ in await self._files.below(scope.folder)])
        return names

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has artifacts.

        Apps with a name that was replaced by its hash, because the name was too long, are left out.
        """
        paths = [path.split("/") for path, _ in await self._files.below("")]
        user = ["users", _segment(user_id)]
        return sorted({_name(path[0]) for path in paths if path[1:3] == user and not path[0].startswith(_HASHED)})

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all files of a user in an app, including content without a record. Return the number of artifacts."""
        folder = _scope_of(app_name, user_id, None).user_folder
        paths = [path for path, _ in await self._files.below(folder)]
        if not dry_run:
            await _remove_files(self._files, folder, paths)
        return len({place for place, _, name in map(_split, paths) if _RECORD.fullmatch(name)})

    async def list_sessions(self) -> dict[tuple[str, str, str], datetime]:
        """Return each session that has artifacts, as (app, user, session), with the time when one was last written.

        Sessions with a name that was replaced by its hash, because the name was too long, are left out.
        """
        sessions: dict[tuple[str, str, str], datetime] = {}
        for path, written in await self._files.below(""):
            match path.split("/"):
                case [app, "users", user, "sessions", session, _, _] if _HASHED not in (app[:2], user[:2], session[:2]):
                    key = _name(app), _name(user), _name(session)
                    sessions[key] = max(written, sessions.get(key, written))
        return sessions

    async def has_invocation_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> bool:
        """Return whether the records show that a session's artifacts are those of an invocation without a session.

        Such artifacts are stored under the ID of the invocation. Its called agents and its forks save there, too.
        """
        folder = _scope_of(app_name, user_id, session_id).folder
        for place, _, name in [_split(path) for path, _ in await self._files.below(folder)]:
            if form := _RECORD.fullmatch(name):
                record = await _read_record(self._files, f"{folder}/{place}", int(form[1]))
                if record and record.saved_by.startswith((f"{session_id}/", f"{session_id}~")):
                    return True
        return False

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of all versions in ascending order."""
        return list((await self._list(_key_of(app_name, user_id, filename, session_id))).versions)

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the metadata of all versions in ascending order."""
        key = _key_of(app_name, user_id, filename, session_id)
        versions = [await self._read_metadata(key, version) for version in (await self._list(key)).versions]
        return [metadata for metadata in versions if metadata is not None]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the metadata of one version, by default the latest, or None if that version does not exist."""
        return await self._read_metadata(_key_of(app_name, user_id, filename, session_id), version)

    async def _read_metadata(self, key: ArtifactKey, version: int | None) -> ArtifactVersion | None:
        version, record = await self._find_version(key, version)
        if record is None:
            return None
        return ArtifactVersion(
            version=version,
            canonical_uri=self._uri(key, version, record.data),
            custom_metadata=record.custom_metadata,
            create_time=record.create_time,
            mime_type=record.mime_type,
        )

    async def _read_content(self, key: ArtifactKey, version: int | None) -> ArtifactContent | None:
        _, record = await self._find_version(key, version)
        if record is None:
            return None
        data = None if record.is_elsewhere else await self._files.get(f"{key.folder}/{record.data}")
        if data is None and not record.is_elsewhere:
            return None  # deleted after the record was read
        return ArtifactContent(part=record.part, carrier=record.carrier, data=data)

    def _uri(self, key: ArtifactKey, version: int, data: str) -> str:
        """Return the canonical URI of a version whose content is in the file `data`."""
        return f"{self.place}/{key.folder}/{data}"

    async def _list(self, key: ArtifactKey) -> _Listing:
        files = dict(await self._files.below(key.folder))
        records = {name: int(form[1]) for name in files if (form := _RECORD.fullmatch(name))}
        others = {name: written for name, written in files.items() if name not in records}
        return _Listing(sorted(records.values()), others)

    async def _find_version(self, key: ArtifactKey, version: int | None) -> tuple[int, _Record | None]:
        """Return the version number, by default the latest, and its record. The record of a missing version is None."""
        if version is None:
            version = max((await self._list(key)).versions, default=-1)
        return version, await _read_record(self._files, key.folder, version) if version >= 0 else None


async def _list_names(files: ObjectFiles, scope: Scope) -> list[str]:
    versions: dict[str, int] = {}
    for path, _ in await files.below(scope.folder):
        segment, _, name = path.partition("/")
        if form := _RECORD.fullmatch(name):
            versions[segment] = int(form[1])
    prefix = USER_PREFIX if scope.session_id is None else ""
    names = []
    for segment, version in versions.items():
        if not segment.startswith(_HASHED):
            names.append(prefix + _name(segment))
        elif record := await _read_record(files, f"{scope.folder}/{segment}", version):
            names.append(record.name)
    return names


async def _read_record(files: ObjectFiles, folder: str, version: int) -> _Record | None:
    data = await files.get(f"{folder}/{version}.json")
    return None if data is None else _Record.model_validate_json(data)


async def _is_saved(files: ObjectFiles, key: ArtifactKey, version: int, data: str) -> bool:
    """Return whether the record of this version refers to this content file."""
    record = await _read_record(files, key.folder, version)
    return record is not None and record.data == data


async def _remove_files(files: ObjectFiles, folder: str, paths: Sequence[str]) -> None:
    """Remove files below a folder, records first so that no version is ever incomplete."""
    for of_record in (True, False):
        selected = [path for path in paths if bool(_RECORD.fullmatch(_split(path)[2])) is of_record]
        await asyncio.gather(*(files.remove(f"{folder}/{path}") for path in selected))


def _split(path: str) -> tuple[str, str, str]:
    """Return the folder of a path, a slash, and the name of the file."""
    return path.rpartition("/")


def _segment(name: str) -> str:
    """Convert a name to one safe path segment, without separators, `..` or a leading dot."""
    # Escape with `=` because obstore would escape `%` again. Different names get different segments.
    text = quote(name, safe="").replace("~", "%7E").replace("%", "=")
    if text.startswith("."):
        text = f"=2E{text[1:]}"
    if text.endswith("."):
        text = f"{text[:-1]}=2E"
    if len(text) > MAX_SEGMENT_CHARS:
        return _HASHED + hashlib.sha256(name.encode()).hexdigest()
    return text or _EMPTY


def _name(segment: str) -> str:
    """Return the name that a path segment encodes. The segment must not be the hash of a long name."""
    return "" if segment == _EMPTY else unquote(segment.replace("=", "%"))


def _key_of(app_name: str, user_id: str, filename: str, session_id: str | None) -> ArtifactKey:
    """Return an artifact's key. The artifact belongs to the session or, with the prefix `user:`, to the user.

    Raises:
        InputValidationError: The filename requires a session and none is given, or a name is not valid Unicode.
    """
    shared = filename.startswith(USER_PREFIX)
    if session_id is None and not shared:
        # The same message as in ADK.
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    _check("filename", filename)
    return ArtifactKey(_scope_of(app_name, user_id, None if shared else session_id), filename)


def _scope_of(app_name: str, user_id: str, session_id: str | None) -> Scope:
    """Return the scope of one session, or of all the user's sessions if `session_id` is None.

    Raises:
        InputValidationError: A name is not valid Unicode.
    """
    for field, name in (("app_name", app_name), ("user_id", user_id), ("session_id", session_id or "")):
        _check(field, name)
    return Scope(app_name, user_id, session_id)


def _check(field: str, name: str) -> None:
    if not isinstance(name, str):
        raise InputValidationError(f"{field} must be a string, not {type(name).__name__}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputValidationError(f"{field} {name!a} is not valid Unicode: it has a lone surrogate.") from None


def _parse_reference(uri: str, scope: Scope) -> tuple[ArtifactKey, int]:
    """Parse a reference into an artifact key and a version, for a caller with access to `scope`.

    Raises:
        InputValidationError: The reference is not valid, or names a different app, user or session.
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


def _content_of(artifact: Part | dict[str, Any]) -> ArtifactContent:
    """Split a Part into JSON and data.

    Raises:
        InputValidationError: The value is not a Part, has no content to store, or cannot be converted to JSON.
    """
    from google.genai.types import Part  # takes a second to import, so callers use a thread

    part = Part.model_validate(artifact) if isinstance(artifact, dict) else artifact
    if not isinstance(part, Part):
        raise InputValidationError(
            f"An artifact must be a google.genai.types.Part, not {type(part).__name__}. "
            "Use types.Part.from_text(text=...) or types.Part.from_bytes(data=..., mime_type=...)."
        )
    if part.inline_data is not None:
        # Drop the bytes, which JSON would encode as base64.
        rest = part.model_copy(update={"inline_data": part.inline_data.model_copy(update={"data": None})})
        return ArtifactContent(part=_json(rest), carrier="inlineData", data=part.inline_data.data)
    if part.text is not None:
        rest = part.model_copy(update={"text": None})
        return ArtifactContent(part=_json(rest), carrier="text", data=part.text.encode("utf-8", "surrogatepass"))
    if part.file_data is not None:
        return ArtifactContent(part=_json(part), carrier="fileData", data=None)
    raise InputValidationError("Not supported artifact type.")  # the same message as in ADK


def _part_of(content: ArtifactContent) -> Part:
    """Rebuild the Part."""
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
        dumped: JsonObject = to_plain_json(part.model_dump(mode="json", by_alias=True, exclude_none=True))
    except (ValueError, NotJson) as error:
        raise InputValidationError(f"The artifact cannot be converted to JSON: {error}") from None
    return dumped
