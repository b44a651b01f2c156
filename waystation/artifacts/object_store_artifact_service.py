"""Artifacts in an object store: a local folder, S3, Google Cloud Storage or Azure.

An artifact is a folder. Each version is a record `<version>.json`, created only if it is not there yet, and the content
as a file of its own, written before the record. So a version is there whole or not at all, two savers never get the
same number, and contents can be opened with anything that reads files.
"""

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote, unquote

from pydantic import BaseModel

from waystation.artifacts.base_artifact_service import USER_PREFIX, ArtifactVersion
from waystation.artifacts.keyed_artifact_service import (
    ArtifactContent,
    ArtifactKey,
    Carrier,
    KeyedArtifactService,
    Scope,
    scope_of,
)
from waystation.core import JsonObject
from waystation.storage.object_files import ObjectFiles

MAX_SEGMENT_CHARS = 120
"""Four segments and what is between them stay below the 1,024 bytes that S3 allows for a whole name."""
ABANDONED_AFTER = timedelta(days=1)
"""When a content without a record cannot be one that is just being saved."""
_RECORD = re.compile(r"([0-9]{1,18})\.json")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")
_HASHED = "=="
_EMPTY = "="


class _Record(BaseModel):
    """What is written beside the content of a version."""

    name: str
    part: JsonObject
    carrier: Carrier
    data: str
    """Name of the file with the content, in the same folder."""
    is_elsewhere: bool = False
    """Whether that file is empty because the Part only says where the content is."""
    mime_type: str | None = None
    create_time: float
    custom_metadata: JsonObject = {}


class _Listed(NamedTuple):
    """What is in the folder of an artifact."""

    versions: Sequence[int]
    others: dict[str, datetime]
    """Everything that is not a record, and when it was written."""


class ObjectStoreArtifactService(KeyedArtifactService):
    """Keeps artifacts in an object store. Any number of processes may share it.

    Whatever apps, users, sessions and files are called, nothing leaves its folder: every name becomes one segment of
    a path, in letters, digits, `-`, `_`, `.` and `=XX` for any other byte; one that gets too long becomes its hash.
    """

    def __init__(self, url_or_path: str | Path) -> None:
        """`url_or_path` is a folder, created when it is first needed, or a URL.

        Such as `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder` or, for tests, `memory:///`. Credentials
        and endpoints come from the environment, as the cloud's own tools take them.

        Raises:
            StoreFailed: There is no store for such a URL, or it lacks what it needs.
        """
        self._files = ObjectFiles(url_or_path)
        if self._files.folder is None:
            _ = self._files.store  # so that a wrong URL is found when the worker starts

    @property
    def place(self) -> str:
        """The store's URL, without credentials that may be in it."""
        return self._files.place

    async def _append(
        self, key: ArtifactKey, content: ArtifactContent, custom_metadata: JsonObject, token: str | None
    ) -> int:
        folder = _folder(key)
        listed = await self._list(folder)
        suffix = PurePosixPath(key.filename).suffix
        data = f"data-{token or secrets.token_hex(16)}{suffix if _SUFFIX.fullmatch(suffix) else ''}"
        if data in listed.others:
            for version in reversed(listed.versions):
                kept = await self._record(folder, version)
                if kept is not None and kept.data == data:
                    return version
        record = _Record(
            name=key.filename,
            part=content.part,
            carrier=content.carrier,
            data=data,
            is_elsewhere=content.data is None,
            mime_type=content.mime_type,
            create_time=time.time(),
            custom_metadata=custom_metadata,
        )
        # Also when there is nothing to keep: it is by this file that a repeated save finds the first.
        await self._files.put(f"{folder}/{data}", content.data or b"")
        version = listed.versions[-1] + 1 if listed.versions else 0
        while not await self._files.put(f"{folder}/{version}.json", record.model_dump_json().encode(), new=True):
            kept = await self._record(folder, version)
            if kept is not None and kept.data == data:
                # An attempt of the store's client whose answer was lost, or another attempt at the same call.
                return version
            version += 1
        return version

    async def _versions(self, key: ArtifactKey) -> list[int]:
        return list((await self._list(_folder(key))).versions)

    async def _about(self, key: ArtifactKey, version: int) -> ArtifactVersion | None:
        record = await self._record(_folder(key), version)
        if record is None:
            return None
        return ArtifactVersion(
            version=version,
            canonical_uri=f"{self.place}/{_folder(key)}/{record.data}",
            custom_metadata=record.custom_metadata,
            create_time=record.create_time,
            mime_type=record.mime_type,
        )

    async def _content(self, key: ArtifactKey, version: int) -> ArtifactContent | None:
        record = await self._record(_folder(key), version)
        if record is None:
            return None
        data = None if record.is_elsewhere else await self._files.get(f"{_folder(key)}/{record.data}")
        if data is None and not record.is_elsewhere:
            return None  # deleted in between
        return ArtifactContent(part=record.part, carrier=record.carrier, data=data)

    async def _names(self, scope: Scope) -> list[str]:
        versions: dict[str, int] = {}
        for path, _ in await self._files.below(_folder_of(scope)):
            segment, _, name = path.partition("/")
            if form := _RECORD.fullmatch(name):
                versions[segment] = int(form[1])
        prefix = USER_PREFIX if scope.session_id is None else ""
        names = []
        for segment, version in versions.items():
            if not segment.startswith(_HASHED):
                names.append(prefix + _name(segment))
            elif record := await self._record(f"{_folder_of(scope)}/{segment}", version):
                names.append(record.name)
        return names

    async def _delete(self, key: ArtifactKey) -> None:
        folder = _folder(key)
        listed = await self._list(folder)
        # Not every content that has no record: one may be being saved just now.
        old = datetime.now(UTC) - ABANDONED_AFTER
        data = {name for name, written in listed.others.items() if written < old}
        for version in reversed(listed.versions):
            if record := await self._record(folder, version):
                data.add(record.data)
            await self._files.remove(f"{folder}/{version}.json")
        await asyncio.gather(*(self._files.remove(f"{folder}/{name}") for name in sorted(data)))

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete all that is kept of one session, contents without a record too; return the artifacts' names."""
        scope = scope_of(app_name, user_id, session_id)
        names = sorted(await self._names(scope))
        folder = _folder_of(scope)
        left = [name for name, _ in await self._files.below(folder)]
        # Records first: what is not there whole must not be there at all.
        for of_record in (True, False):
            paths = [name for name in left if bool(_RECORD.fullmatch(name.rpartition("/")[2])) is of_record]
            await asyncio.gather(*(self._files.remove(f"{folder}/{path}") for path in paths))
        return names

    async def _list(self, folder: str) -> _Listed:
        versions, others = [], {}
        for name, written in await self._files.below(folder):
            if form := _RECORD.fullmatch(name):
                versions.append(int(form[1]))
            else:
                others[name] = written
        return _Listed(sorted(versions), others)

    async def _record(self, folder: str, version: int) -> _Record | None:
        data = await self._files.get(f"{folder}/{version}.json")
        return None if data is None else _Record.model_validate_json(data)


def _folder_of(scope: Scope) -> str:
    user = f"{_segment(scope.app_name)}/users/{_segment(scope.user_id)}"
    return f"{user}/files" if scope.session_id is None else f"{user}/sessions/{_segment(scope.session_id)}"


def _folder(key: ArtifactKey) -> str:
    name = key.filename if key.scope.session_id is not None else key.filename.removeprefix(USER_PREFIX)
    return f"{_folder_of(key.scope)}/{_segment(name)}"


def _segment(name: str) -> str:
    """Return a name as one segment of a path that nothing interprets: no separators, no `..`, no hidden files."""
    # `=` instead of `%`, which obstore would escape once more; and no two names share a segment.
    text = quote(name, safe="").replace("~", "%7E").replace("%", "=")
    if text.startswith("."):
        text = f"=2E{text[1:]}"
    if text.endswith("."):
        text = f"{text[:-1]}=2E"
    if len(text) > MAX_SEGMENT_CHARS:
        return _HASHED + hashlib.sha256(name.encode()).hexdigest()
    return text or _EMPTY


def _name(segment: str) -> str:
    """Return the name that such a segment stands for, unless it is hashed."""
    return "" if segment == _EMPTY else unquote(segment.replace("=", "%"))
