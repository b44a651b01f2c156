"""Immutable bytes in an object store, named by their digest."""

import hashlib
import os
import re
from pathlib import Path

from cachetools import TTLCache

from waystation.core import StoreFailed
from waystation.storage.object_files import ObjectFiles

STORE = Path(".waystation") / "payloads"
STORE_VARIABLE = "WAYSTATION_STORE"
LATELY_S = 60.0
"""For so long what was put is not put again: a result is put before its activity returns, which then needs no store."""
MAX_LATELY = 1_000
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobMissing(StoreFailed):
    """The store answers, and does not hold the bytes of a digest."""


class Blobs:
    """Keeps bytes under their SHA-256, so that the same bytes are kept once and damaged ones are noticed."""

    def __init__(self, url_or_path: str | Path | None = None) -> None:
        """`url_or_path` is a folder, created when it is first needed, or a URL such as `s3://bucket/prefix`.

        By default what `WAYSTATION_STORE` says, or else the folder `.waystation/payloads`.
        """
        self.files = ObjectFiles(url_or_path or os.environ.get(STORE_VARIABLE) or STORE)
        self._lately: TTLCache[str, bool] = TTLCache(MAX_LATELY, LATELY_S)

    async def put(self, data: bytes) -> str:
        """Keep bytes; return their digest.

        Raises:
            StoreFailed: The store does not take them.
        """
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._lately:
            await self.files.put(_path(digest), data, new=True)
            self._lately[digest] = True
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest.

        Raises:
            BlobMissing: They are not there, or are not what they were.
            StoreFailed: The store does not answer.
        """
        if not _DIGEST.fullmatch(digest):
            raise BlobMissing(self.files.place, "what is asked for is no SHA-256 digest.")
        data = await self.files.get(_path(digest))
        if data is None:
            text = f"it does not hold {digest[:12]}…; is it the store of the workers? See {STORE_VARIABLE}."
            raise BlobMissing(self.files.place, text)
        if hashlib.sha256(data).hexdigest() != digest:
            raise BlobMissing(self.files.place, f"{digest[:12]}… is damaged: the bytes have another digest.")
        return data


def _path(digest: str) -> str:
    return f"{digest[:2]}/{digest}"
