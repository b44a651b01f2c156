"""Encrypted data is unreadable without the key, and readable in every program with the key."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import temporalio.converter
from google.genai import types
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from tests.paths import ROOT
from waystation.core.errors import InvalidConfiguration, StoreFailed
from waystation.key_set import EncryptionKeys
from waystation.memory import MemoryEntry
from waystation.memory.sqlite_memory_service import SqliteMemoryService
from waystation.storage import ENCRYPTED, ENCRYPTION_VARIABLE, UNREADABLE, Blobs, ObjectFiles, describe_missing_key
from waystation.storage.driver import offloading

SECRET = "the account is 4711"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a new key file, with encryption switched on."""
    file = tmp_path / "encryption.json"
    EncryptionKeys.generate().create(file)
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    return file


def key_id(file: Path) -> str:
    """Return the ID of the key that encrypts."""
    return str(json.loads(file.read_text())["keys"][0]["kid"])


def read_all(folder: Path, pattern: str) -> bytes:
    """Return the content of all files that match a pattern."""
    return b"".join(file.read_bytes() for file in folder.rglob(pattern) if file.is_file())


def add_key(file: Path) -> None:
    """Put a new key in front of those of a key file."""
    new = file.with_name("new.json")
    EncryptionKeys.generate().create(new)
    keys = [key for source in (new, file) for key in json.loads(source.read_text())["keys"]]
    file.write_text(json.dumps({"keys": keys}))


def keep_first_key(file: Path) -> None:
    """Remove all keys but the first from a key file."""
    file.write_text(json.dumps({"keys": json.loads(file.read_text())["keys"][:1]}))


def converter(tmp_path: Path) -> DataConverter:
    """Return the converter of a program that starts now."""
    return offloading(Blobs(tmp_path / "store"))


async def test_a_payload_is_unreadable_without_the_key(keys: Path, tmp_path: Path) -> None:
    """The metadata names the key, and nothing else about the payload is readable."""
    [payload] = await converter(tmp_path).encode([SECRET])
    assert dict(payload.metadata) == {"encoding": ENCRYPTED, "encryption-key-id": key_id(keys).encode()}
    assert SECRET.encode() not in payload.SerializeToString()
    assert await converter(tmp_path).decode([payload]) == [SECRET]


async def test_equal_payloads_look_different(keys: Path, tmp_path: Path) -> None:
    """Equal payloads are encrypted differently, because a reader could otherwise see which answers are equal."""
    one, other = [await converter(tmp_path).encode([SECRET]) for _ in range(2)]
    assert one[0].data != other[0].data


async def test_a_failure_has_no_readable_message(keys: Path, tmp_path: Path) -> None:
    """The message and the stack trace are encrypted, because they may quote the arguments of a tool."""
    failure = Failure()
    try:
        raise ApplicationError(SECRET, {"account": SECRET}) from ValueError(SECRET)
    except ApplicationError as error:
        await converter(tmp_path).encode_failure(error, failure)
    assert SECRET.encode() not in failure.SerializeToString()
    assert b"test_encryption" not in failure.SerializeToString()
    assert str(await converter(tmp_path).decode_failure(failure)) == SECRET


async def test_old_keys_decrypt(keys: Path, tmp_path: Path) -> None:
    """After a rotation, the new key encrypts, and the old one only decrypts."""
    running = converter(tmp_path)
    [before] = await running.encode([SECRET])
    add_key(keys)
    [after] = await _restarted(tmp_path, keys).encode([SECRET])
    assert before.metadata["encryption-key-id"] != after.metadata["encryption-key-id"]
    assert await _restarted(tmp_path, keys).decode([before, after]) == [SECRET, SECRET]


def _restarted(tmp_path: Path, keys: Path) -> DataConverter:
    """Return the converter of a program that starts now, and reads the key file under another name."""
    link = keys.with_name(f"link-{os.urandom(4).hex()}.json")
    link.symlink_to(keys)
    os.environ[ENCRYPTION_VARIABLE] = str(link)  # the fixture restores it at the end
    return converter(tmp_path)


async def test_a_running_program_finds_a_new_key_in_its_file(keys: Path, tmp_path: Path) -> None:
    """If a payload names an unknown key, the file is read again."""
    running = converter(tmp_path)
    add_key(keys)
    [payload] = await _restarted(tmp_path, keys).encode([SECRET])
    assert await running.decode([payload]) == [SECRET]


async def test_a_payload_with_a_missing_key_stays_encrypted(keys: Path, tmp_path: Path) -> None:
    """A payload with a missing key is left encrypted, because an error would block a workflow.

    Readers name the key and the remedy.
    """
    [payload] = await converter(tmp_path).encode([SECRET])
    add_key(keys)
    keep_first_key(keys)
    codec = _restarted(tmp_path, keys).payload_codec
    assert codec is not None
    assert await codec.decode([payload]) == [payload]
    problem = describe_missing_key(payload)
    assert problem is not None
    assert payload.metadata["encryption-key-id"].decode() in problem
    assert ENCRYPTION_VARIABLE in problem


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 100])
async def test_a_damaged_payload_becomes_unreadable(keys: Path, tmp_path: Path, data: bytes) -> None:
    """A damaged payload is replaced without an error, because anyone who may signal a workflow can send one."""
    codec = converter(tmp_path).payload_codec
    assert codec is not None
    [payload] = await codec.encode([Payload(data=b"x")])
    payload.data = data
    [read] = await codec.decode([payload])
    assert dict(read.metadata) == UNREADABLE


async def test_payloads_without_encryption_stay_readable(keys: Path, tmp_path: Path) -> None:
    """Payloads from before encryption and from the Temporal CLI are read."""
    [plain] = await temporalio.converter.DataConverter.default.encode([SECRET])
    assert await converter(tmp_path).decode([plain]) == [SECRET]


async def test_a_large_payload_is_encrypted_in_the_store(keys: Path, tmp_path: Path) -> None:
    """A large payload is stored once, although a worker encodes a large result twice, and no file is readable."""
    large = f"{SECRET} " * 50_000
    writer = converter(tmp_path)
    await writer.encode([large])
    [reference] = await writer.encode([large])
    files = [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
    assert len(files) == 1
    assert SECRET.encode() not in files[0].read_bytes() + reference.SerializeToString()
    assert await converter(tmp_path).decode([reference]) == [large]


async def test_files_in_stores_are_encrypted(keys: Path, tmp_path: Path) -> None:
    """A file cannot be read under the name of another one. Unencrypted files from before stay readable."""
    files = ObjectFiles(tmp_path / "artifacts")
    await files.put("ann/note", SECRET.encode())
    stored = tmp_path / "artifacts" / "ann" / "note"
    assert SECRET.encode() not in stored.read_bytes()
    assert await files.get("ann/note") == SECRET.encode()
    stored.with_name("other").write_bytes(stored.read_bytes())
    with pytest.raises(StoreFailed, match="ann/other: it is damaged"):
        await files.get("ann/other")
    stored.with_name("old").write_bytes(b"plain")
    assert await files.get("ann/old") == b"plain"


async def test_a_file_is_not_read_without_its_key(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the key and the remedy, even if encryption is switched off."""
    files = ObjectFiles(tmp_path / "artifacts")
    await files.put("note", SECRET.encode())
    monkeypatch.delenv(ENCRYPTION_VARIABLE)
    with pytest.raises(StoreFailed, match=f"encrypted with the key '{key_id(keys)}'.*{ENCRYPTION_VARIABLE}"):
        await files.get("note")


async def test_encrypted_memories_are_found(keys: Path, tmp_path: Path) -> None:
    """Words and phrases without spaces are found in memories with a current key, an old one, or none."""
    file = tmp_path / "memory.db"

    async def remember(text: str) -> None:
        memory = MemoryEntry(content=types.Content(parts=[types.Part(text=text)]))
        await SqliteMemoryService(file).add_memory(app_name="shop", user_id="ann", memories=[memory])

    async def find(query: str) -> list[str]:
        matches = await SqliteMemoryService(file).search_memory(app_name="shop", user_id="ann", query=query)
        return sorted(str(memory.content.parts[0].text) for memory in matches.memories if memory.content.parts)

    await remember("Ann owns the café Zephyr")
    await remember("安娜喜欢茶")
    add_key(keys)
    _restarted(tmp_path, keys)
    await remember("Zephyr opens at 9")
    stored = read_all(tmp_path, "memory.db*")
    assert [word for word in ("ann owns", "café", "zephyr", "喜欢") if word.encode() in stored.lower()] == []
    assert await find("CAFE") == ["Ann owns the café Zephyr"]
    assert await find("zephyr") == ["Ann owns the café Zephyr", "Zephyr opens at 9"]
    assert (await find("喜欢"), await find("欢喜")) == (["安娜喜欢茶"], [])
    os.environ.pop(ENCRYPTION_VARIABLE)
    await remember("plain Zephyr")
    _restarted(tmp_path, keys)
    assert len(await find("zephyr")) == 3


@pytest.mark.parametrize(("content", "problem"), [(None, "cannot be read"), ("{}", "waystation encryption keys FILE")])
def test_unusable_keys_are_refused_with_the_remedy(
    content: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program without usable keys does not start. The error is one line."""
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    with pytest.raises(InvalidConfiguration, match=problem) as refused:
        converter(tmp_path)
    assert str(file) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.slow
def test_nothing_is_imported_while_encryption_is_switched_off() -> None:
    """No encryption library is imported, so the start of other workers is not slower."""
    code = (
        "import sys; from waystation.storage import Blobs, offloading; offloading(Blobs()); "
        "print({'cryptography', 'waystation.key_set', 'waystation.storage.cipher'} & set(sys.modules))"
    )
    environment = {name: value for name, value in os.environ.items() if name != ENCRYPTION_VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
