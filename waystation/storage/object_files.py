"""Files in an object store: a local folder, S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from waystation.core.errors import StoreFailed
from waystation.extensions import ExtensionFailed, FileStore
from waystation.private_files import create_folder
from waystation.project_file import Project
from waystation.storage.encryption import decrypt_file, encrypt_file
from waystation.storage.owners import Owner
from waystation.storage.store_places import describe_place, load_store, local_path

_CREDENTIALS = re.compile(r"(?<=//)[^/\s]*@|\?\S*")
"""Matches the user and password in a URL, and a query string, which may contain a signature. Errors omit matches."""

ID_FILE = ".store-id"
"""The file with the store's ID. Neither a digest nor an escaped name begins with a dot."""
_REMEDY = "use a folder, or a URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
_NEARLY_URL = re.compile(r"[a-z][a-z0-9+]+:/", re.IGNORECASE)


def unusable(folder: Path) -> str | None:
    """Return why a folder cannot be used, or None if it appears to be writable. The folder may not exist yet."""
    if _NEARLY_URL.match(str(folder)):
        return f"{str(folder)!r} is neither a folder nor a URL; {_REMEDY}"
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        return f"{existing} is a file; {_REMEDY}"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} is not writable by this process. Change its permissions, or {_REMEDY}"
    return None


class ObjectFiles:
    """Reads and writes files by path, encrypted if encryption is switched on.

    All methods raise StoreFailed if the store fails.
    """

    def __init__(self, url_or_path: str | Path, *, project: Project | None = None) -> None:
        """Use a folder, which is created when first needed, or a URL such as `s3://bucket/prefix`."""
        self._url, self._project = str(url_or_path), project
        self.folder = local_path(url_or_path)

    @functools.cached_property
    def place(self) -> str:
        """The store's URL without credentials."""
        return describe_place(self._url)

    @functools.cached_property
    def store(self) -> FileStore:
        """The store, which is opened on first use.

        Raises:
            ExtensionFailed: The package that provides it cannot be loaded.
        """
        try:
            opened = load_store(self._url, FileStore, "open_files")  # type: ignore[type-abstract]  # only for isinstance
        except ValueError as error:
            raise StoreFailed(self.place, str(error)) from None
        with self._convert_errors():
            if self.folder is not None:
                create_folder(self.folder)
            return opened or _Objects(self.folder or self._url)

    def unusable(self) -> str | None:
        """Return why the store cannot be used, or None if no problem is known. Do not create or request anything."""
        if self.folder is not None:
            return unusable(self.folder)
        try:
            _ = self.store
        except ValueError:
            return f"it is not a valid URL; {_REMEDY}"
        except ExtensionFailed as error:
            return str(error)
        except StoreFailed as error:
            unknown = "Unable to recognise URL" in error.problem
            return f"the URL is not supported; {_REMEDY}" if unknown else error.problem
        return None

    async def store_id(self) -> str:
        """Return the store's ID, which is created if it is missing, or "" for a folder that does not exist yet."""
        if self.folder is not None and not self.folder.exists():
            return ""
        if (id := await self.get(ID_FILE)) is None:
            await self.put(ID_FILE, secrets.token_hex(4).encode(), new=True)
            id = await self.get(ID_FILE) or b""
        return id.decode()

    async def below(self, folder: str) -> list[tuple[str, datetime]]:
        """Return the relative paths of the files below a folder, with the times they were written.

        If `folder` is empty, return all files.
        """
        with self._convert_errors():
            files = await self.store.list_files(folder)
        return [(path.removeprefix(f"{folder}/"), written) for path, written in files]

    async def get(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        with self._convert_errors():
            data = await self.store.get(path)
        if data is None:
            return None
        try:
            return decrypt_file(path, data, self._project)
        except ValueError as error:
            raise StoreFailed(self.place, f"{path}: {error}") from None

    async def put(self, path: str, data: bytes, *, new: bool = False, owner: Owner | None = None) -> bool:
        """Write a file of `owner`. If `new` is true and the file exists, write nothing and return False."""
        content = encrypt_file(path, data, owner, self._project)
        with self._convert_errors():
            return await self.store.put(path, content, new=new)

    async def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        with self._convert_errors():
            await self.store.remove(path)

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert the store's errors to a short StoreFailed that does not contain credentials or signed URLs."""
        try:
            yield
        except (StoreFailed, ValueError):
            raise
        except Exception as error:  # noqa: BLE001  # from obstore or another package
            cause = _CREDENTIALS.sub("…", (str(error).splitlines() or [""])[0])
            raise StoreFailed(self.place, f"{type(error).__name__}: {cause[:300]}") from None


class _Objects:
    """Waystation's own `FileStore`: an object store or a folder."""

    def __init__(self, place: str | Path) -> None:
        from obstore.store import LocalStore, from_url

        self._store = from_url(place) if isinstance(place, str) else LocalStore(place)

    async def list_files(self, folder: str, /) -> list[tuple[str, datetime]]:
        import obstore

        files = await obstore.list(self._store, prefix=folder or None).collect_async()
        return [(meta["path"], meta["last_modified"]) for meta in files]

    async def get(self, path: str, /) -> bytes | None:
        import obstore

        try:
            return bytes(await (await obstore.get_async(self._store, path)).bytes_async())
        except FileNotFoundError:
            return None

    async def put(self, path: str, data: bytes, /, *, new: bool) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            await obstore.put_async(self._store, path, data, mode="create" if new else "overwrite")
        except AlreadyExistsError:
            return False
        return True

    async def remove(self, path: str, /) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._store, path)
