"""Files in an object store: a local folder, S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from waystation.core.errors import StoreFailed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CREDENTIALS = re.compile(r"(?<=//)[^/\s]*@|\?\S*")
"""Where a URL may carry them: user and password, and the query of a signed one."""


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
