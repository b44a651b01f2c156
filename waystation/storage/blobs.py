"""Immutable bytes in an object store, identified by their digest."""

import asyncio
import hashlib
import re
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cachetools import TTLCache

from waystation.core.errors import StoreFailed
from waystation.project_file import Project, find_setting
from waystation.storage.encryption import decrypt_file, encrypt_file, find_user_keys, is_encrypted_file
from waystation.storage.object_files import ObjectFiles
from waystation.storage.owners import Owner

STORE = Path(".waystation") / "payloads"
STORE_VARIABLE = "WAYSTATION_STORE"
RECENT_S = 60.0
"""Bytes that were stored less than this many seconds ago are not stored again. Without this, a large result would be
stored twice: before its activity returns, and then by the SDK."""
MAX_RECENT = 1_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TRASH = ".trash"


def payload_place(url_or_path: str | Path | None = None, project: Project | None = None) -> str | Path:
    """Return the location of the payload store: the argument, the setting, or else the default folder."""
    return url_or_path or find_setting(STORE_VARIABLE, project) or STORE


class StoredBlob(NamedTuple):
    """Bytes in the store, by digest, with the time when they were written."""

    digest: str
    written: datetime
    is_trash: bool


class BlobMissing(StoreFailed):
    """The bytes for a digest are missing from the store, or damaged.

    Use the store of the workers (`--store`), or restore the file from a backup.
    """


class Blobs:
    """Stores bytes under their SHA-256 digest. Equal bytes are stored only once. Reading detects damaged bytes."""

    def __init__(self, url_or_path: str | Path | None = None, *, project: Project | None = None) -> None:
        """Use the store at `url_or_path`, a folder (created when first needed) or a URL such as `s3://bucket/prefix`.

        The default is the value of `WAYSTATION_STORE`, that of `project` or, if neither is set, the folder
        `.waystation/payloads`.
        """
        self.project = project
        self.files = ObjectFiles(payload_place(url_or_path, project), project=project)
        self._recent: TTLCache[str, bool] = TTLCache(MAX_RECENT, RECENT_S)

    async def put(self, data: bytes, *, workflow_id: str = "") -> str:
        """Store bytes and return their digest.

        If there is a store of user keys and the workflow's ID contains a user, the user's key encrypts the bytes.

        Raises:
            StoreFailed: The bytes could not be stored.
        """
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._recent:
            # Under the encryption of the file, so that pruning can move it without the user's key.
            if (owner := Owner.of_workflow(workflow_id)) and find_user_keys(self.project):
                data = await asyncio.to_thread(encrypt_file, digest, data, owner, self.project)
            await self.files.put(_path(digest), data, new=True)
            self._recent[digest] = True
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes with this digest.

        Raises:
            BlobMissing: The bytes are missing or damaged.
            StoreFailed: The store could not be read.
        """
        if not _DIGEST.fullmatch(digest):
            raise BlobMissing(self.files.place, "the requested digest is not a SHA-256 digest.")
        data = await self.files.get(_path(digest))
        if data is None:
            data = await self.files.get(_trash(digest))
        if data is None:
            text = f"the store does not have {digest[:12]}…. Use the same store as the workers; see {STORE_VARIABLE}."
            raise BlobMissing(self.files.place, text)
        try:
            if is_encrypted_file(data):
                data = await asyncio.to_thread(decrypt_file, digest, data, self.project)
        except ValueError as error:
            raise BlobMissing(self.files.place, f"{digest[:12]}…: {error}") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise BlobMissing(self.files.place, f"{digest[:12]}… is damaged: its bytes have a different digest.")
        return data

    async def list_stored(self) -> list[StoredBlob]:
        """Return an item for all bytes in the store, including those in the trash.

        Raises:
            StoreFailed: The store could not be read.
        """
        names = [(path.rpartition("/"), written) for path, written in await self.files.below("")]
        return [
            StoredBlob(digest, written, is_trash=folder == _TRASH)
            for (folder, _, digest), written in names
            if _DIGEST.fullmatch(digest)
        ]

    async def discard(self, digest: str) -> None:
        """Move bytes to the trash, where `get` still finds them."""
        if (data := await self.files.get(_path(digest))) is not None:
            await self.files.put(_trash(digest), data)
            await self.files.remove(_path(digest))

    async def restore(self, digest: str) -> None:
        """Move bytes back from the trash."""
        if (data := await self.files.get(_trash(digest))) is not None:
            await self.files.put(_path(digest), data, new=True)
            await self.purge(digest)

    async def purge(self, digest: str) -> None:
        """Remove bytes from the trash."""
        await self.files.remove(_trash(digest))


def _path(digest: str) -> str:
    return f"{digest[:2]}/{digest}"


def _trash(digest: str) -> str:
    return f"{_TRASH}/{digest}"
