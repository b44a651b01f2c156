"""Files in an object store: a local folder, S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from waystation.core import StoreFailed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CREDENTIALS = re.compile(r"(?<=//)[^/\s]*@|\?\S*")
"""Where a URL may carry them: user and password, and the query of a signed one."""

_REMEDY = "name a folder, or a URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
_NEARLY_URL = re.compile(r"[a-z][a-z0-9+]+:/", re.IGNORECASE)


def unusable(folder: Path) -> str | None:
    """Return why nothing can be written in a folder, which need not exist yet; None when it seems that it can."""
    if _NEARLY_URL.match(str(folder)):
        return f"{str(folder)!r} is neither a folder nor a URL; {_REMEDY}"
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        return f"{there} is a file; {_REMEDY}"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} may not be written by this process; allow it, or {_REMEDY}"
    return None


class ObjectFiles:
    """Reads and writes files by path. Every method raises StoreFailed when the store does not do it."""

    def __init__(self, url_or_path: str | Path) -> None:
        """`url_or_path` is a folder, created when it is first needed, or a URL such as `s3://bucket/prefix`."""
        self._url = str(url_or_path)
        self.folder: Path | None = None
        if "://" not in self._url:
            self.folder = Path(url_or_path)
        elif self._url.startswith("file://"):
            self.folder = Path(unquote(urlsplit(self._url).path))

    @functools.cached_property
    def place(self) -> str:
        """The store's URL, without credentials that may be in it."""
        if self.folder is not None:
            return self.folder.absolute().as_uri()
        url = urlsplit(self._url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}".rstrip("/")

    @functools.cached_property
    def store(self) -> ObjectStore:
        """The store itself, opened at the first use."""
        from obstore.store import LocalStore, from_url

        with self._failing():
            return from_url(self._url) if self.folder is None else LocalStore(self.folder, mkdir=True)

    def unusable(self) -> str | None:
        """Return why files cannot be kept here, as far as can be said without making or asking for anything."""
        if self.folder is not None:
            return unusable(self.folder)
        try:
            _ = self.store
        except ValueError:
            return f"it is no URL; {_REMEDY}"
        except StoreFailed as error:
            unknown = "Unable to recognise URL" in error.problem
            return f"there is no store for such a URL; {_REMEDY}" if unknown else error.problem
        return None

    async def below(self, folder: str) -> list[tuple[str, datetime]]:
        """Return the paths below a folder, relative to it, and when each was written."""
        import obstore

        with self._failing():
            found = await obstore.list(self.store, prefix=folder).collect_async()
        return [(meta["path"].removeprefix(f"{folder}/"), meta["last_modified"]) for meta in found]

    async def get(self, path: str) -> bytes | None:
        """Return what a file holds, None if there is none."""
        import obstore

        with self._failing():
            try:
                return bytes(await (await obstore.get_async(self.store, path)).bytes_async())
            except FileNotFoundError:
                return None

    async def put(self, path: str, data: bytes, *, new: bool = False) -> bool:
        """Write a file; return False, and write nothing, when it has to be new and is not."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._failing():
            try:
                await obstore.put_async(self.store, path, data, mode="create" if new else "overwrite")
            except AlreadyExistsError:
                return False
        return True

    async def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        import obstore

        with self._failing(), contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self.store, path)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn the store's errors into one that is short and carries no signed URL."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            cause = _CREDENTIALS.sub("…", (str(error).splitlines() or [""])[0])
            raise StoreFailed(self.place, f"{type(error).__name__}: {cause[:300]}") from None
