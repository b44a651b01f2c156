"""Immutable bytes in an object store."""

import shutil
from pathlib import Path

import pytest

from waystation.storage import Blobs
from waystation.storage.blobs import BlobMissing


async def test_what_is_put_is_found_under_its_digest(tmp_path: Path) -> None:
    """Every process with the same store can read the bytes by their digest."""
    digest = await Blobs(tmp_path / "store").put(b"data")
    assert await Blobs(tmp_path / "store").get(digest) == b"data"


async def test_what_was_put_lately_needs_no_store(tmp_path: Path) -> None:
    """A stored result can be returned although the store has failed since, so its tool does not run again."""
    blobs = Blobs(tmp_path / "store")
    digest = await blobs.put(b"data")
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("no folder any more")
    assert await blobs.put(b"data") == digest


async def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    """Damaged and missing bytes and invalid digests are refused."""
    blobs = Blobs(tmp_path / "store")
    digest = await blobs.put(b"data")
    [file] = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    file.write_bytes(b"other")
    for wanted in (digest, "0" * 64, "../" + digest):
        with pytest.raises(BlobMissing):
            await blobs.get(wanted)
