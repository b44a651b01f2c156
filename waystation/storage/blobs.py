"""Immutable bytes in an object store, named by their digest."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from waystation.core.errors import StoreFailed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

STORE = Path(".waystation") / "payloads"
STORE_VARIABLE = "WAYSTATION_STORE"
_CREDENTIALS = re.compile(r"(?<=//)[^/\s]*@|\?\S*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """Keeps bytes under their SHA-256, so that the same bytes are kept once and damaged ones are noticed."""

    def __init__(self, url_or_path: str | Path | None = None) -> None:
        """`url_or_path` is a folder, created when it is first needed, or a URL such as `s3://bucket/prefix`.

        By default what `WAYSTATION_STORE` says, or else the folder `.waystation/payloads`.
        """
        self._url = str(url_or_path or os.environ.get(STORE_VARIABLE) or STORE)

    @functools.cached_property
    def place(self) -> str:
        """The store's URL, without credentials that may be in it."""
        if "://" not in self._url:
            return Path(self._url).absolute().as_uri()
        url = urlsplit(self._url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}".rstrip("/")

    async def put(self, data: bytes) -> str:
        """Keep bytes; return their digest.

        Raises:
            StoreFailed: The store does not take them.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        digest = hashlib.sha256(data).hexdigest()
        with self._failing(), contextlib.suppress(AlreadyExistsError):
            await obstore.put_async(self._store, _path(digest), data, mode="create")
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest.

        Raises:
            StoreFailed: They are not there, or are not what they were.
        """
        import obstore

        if not _DIGEST.fullmatch(digest):
            raise StoreFailed(self.place, "what is asked for is no SHA-256 digest.")
        try:
            with self._failing():
                data = bytes(await (await obstore.get_async(self._store, _path(digest))).bytes_async())
        except FileNotFoundError:
            text = f"it does not hold {digest[:12]}…; is it the store of the workers? See {STORE_VARIABLE}."
            raise StoreFailed(self.place, text) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreFailed(self.place, f"{digest[:12]}… is damaged: the bytes have another digest.")
        return data

    @functools.cached_property
    def _store(self) -> ObjectStore:
        from obstore.store import LocalStore, from_url

        with self._failing():
            if "://" not in self._url:
                return LocalStore(Path(self._url), mkdir=True)
            if self._url.startswith("file://"):
                return LocalStore(Path(unquote(urlsplit(self._url).path)), mkdir=True)
            return from_url(self._url)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn the store's errors into one that is short and carries no signed URL."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            cause = _CREDENTIALS.sub("…", (str(error).splitlines() or [""])[0])
            raise StoreFailed(self.place, f"{type(error).__name__}: {cause[:300]}") from None


def _path(digest: str) -> str:
    return f"{digest[:2]}/{digest}"
