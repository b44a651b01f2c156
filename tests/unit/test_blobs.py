"""Immutable bytes in an object store."""

import shutil
from pathlib import Path

import pytest

from waystation.core.errors import StoreFailed
from waystation.storage import Blobs
from waystation.storage.blobs import BlobMissing


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the location of an empty store."""
    return str(tmp_path / "store") if request.param == "folder" else str(request.getfixturevalue("s3"))


async def test_stored_bytes_are_found_under_their_digest(place: str) -> None:
    """Every process with the same store can read the bytes by their digest."""
    digest = await Blobs(place).put(b"data")
    assert await Blobs(place).put(b"data") == digest
    assert await Blobs(place).get(digest) == b"data"
    with pytest.raises(BlobMissing):
        await Blobs(place).get("0" * 64)


async def test_a_refused_request_names_the_store_without_its_keys(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong key of the object store is reported with the location, without the key."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-51be07")
    with pytest.raises(StoreFailed, match=s3) as caught:
        await Blobs(s3).put(b"data")
    assert "canary" not in str(caught.value)


async def test_recently_stored_bytes_need_no_store(tmp_path: Path) -> None:
    """A result is returned although the store has failed since, so its tool does not run again."""
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
    for requested in (digest, "0" * 64, "../" + digest):
        with pytest.raises(BlobMissing):
            await blobs.get(requested)


async def test_bytes_in_the_trash_are_still_found(place: str) -> None:
    """Bytes can be read from the trash, moved back, stored again and removed for good."""
    blobs = Blobs(place)
    digest = await blobs.put(b"data")
    await blobs.files.store_id()
    assert [(blob.digest, blob.is_trash) for blob in await blobs.list_stored()] == [(digest, False)]
    await blobs.discard(digest)
    assert await blobs.get(digest) == b"data"
    assert [(blob.digest, blob.is_trash) for blob in await blobs.list_stored()] == [(digest, True)]
    await Blobs(place).put(b"data")
    await blobs.restore(digest)
    assert [(blob.digest, blob.is_trash) for blob in await blobs.list_stored()] == [(digest, False)]
    await blobs.discard(digest)
    await blobs.purge(digest)
    with pytest.raises(BlobMissing):
        await blobs.get(digest)


async def test_empty_bytes_are_bytes(place: str) -> None:
    """Empty bytes are not confused with missing ones."""
    assert await Blobs(place).get(await Blobs(place).put(b"")) == b""
