"""Encryption keys that a KMS wraps, over HTTP with the client library of AWS."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.key_management import FakeKms
from tests.programs import command
from tests.unit.test_encryption import SECRET, add_key
from waystation.key_set import EncryptionKeys
from waystation.kms import unwrap_data_key
from waystation.storage import ENCRYPTION_VARIABLE, Blobs, decrypt_file, encrypt_file
from waystation.storage.cipher import Cipher
from waystation.storage.driver import offloading

URI = "awskms://alias/waystation"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKms]:
    """Run a key management service that has received no requests."""
    unwrap_data_key.cache_clear()
    for name, value in {"REGION": "eu-central-1", "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with FakeKms() as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", service.url)
        yield service


async def create(file: Path, uri: str = URI) -> None:
    """Create a key file with the command line."""
    ran = await command("encryption", "keys", str(file), "--kms", uri)
    assert ran.code == 0, ran.err


async def test_a_wrapped_key_encrypts_and_decrypts(
    service: FakeKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key file contains no usable key. A program asks the service once, when it starts."""
    file = tmp_path / "keys.json"
    await create(file)
    [key] = json.loads(file.read_text())["keys"]
    assert key.keys() == {"kty", "alg", "kid", "kms", "wrapped"}
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    [payload] = await offloading(Blobs("unused")).encode([SECRET])
    assert payload.metadata["encryption-key-id"] == key["kid"].encode()
    assert await offloading(Blobs("unused")).decode([payload]) == [SECRET]
    assert decrypt_file("f", encrypt_file("f", b"x")) == b"x"
    assert service.requests == ["GenerateDataKeyWithoutPlaintext eu-central-1", "Decrypt eu-central-1"]


async def test_forged_key_ids_cause_no_calls(service: FakeKms, tmp_path: Path) -> None:
    """A cipher does not call the KMS for an unknown key ID, which anyone who may signal a workflow can send."""
    await create(tmp_path / "keys.json")
    cipher = Cipher(str(tmp_path / "keys.json"))
    before = len(service.requests)
    assert [cipher.decrypt(id, b"x") for id in (b"a", b"b", b"c")] == [None] * 3
    assert len(service.requests) == before


async def test_keys_are_rotated_to_a_kms_key(service: FakeKms, tmp_path: Path) -> None:
    """A file may contain wrapped and unwrapped keys."""
    old, new = tmp_path / "old.json", tmp_path / "wrapped.json"
    EncryptionKeys.generate().create(old)
    before = Cipher(str(old))
    await create(new)
    keys = [key for file in (new, old) for key in json.loads(file.read_text())["keys"]]
    old.write_text(json.dumps({"keys": keys}))
    after = Cipher(str(old))
    assert after.key_id != before.key_id
    assert after.decrypt(before.key_id, before.encrypt(b"x")) == b"x"
    add_key(old)
    assert Cipher(str(old)).decrypt(after.key_id, after.encrypt(b"y")) == b"y"


async def test_an_arn_selects_the_region(service: FakeKms, tmp_path: Path) -> None:
    """The region of the ARN takes precedence over AWS_REGION."""
    await create(tmp_path / "keys.json", "awskms://arn:aws:kms:us-east-2:111122223333:alias/waystation")
    assert service.requests == ["GenerateDataKeyWithoutPlaintext us-east-2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("denied", "AccessDeniedException"),
        ("key deleted", "NotFoundException"),
        ("key replaced", "InvalidCiphertextException"),
        ("renamed", "InvalidCiphertextException"),
        ("unreachable", "Could not connect"),
        ("no region", "region"),
        ("invalid URI", "is not a valid URI of a KMS key"),
        ("damaged", "is not in Base64"),
    ],
)
async def test_a_program_without_access_to_the_key_names_variable_key_and_cause(
    fault: str, cause: str, service: FakeKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program stops before it connects to a server."""
    file = tmp_path / "keys.json"
    await create(file)
    [key] = json.loads(file.read_text())["keys"]
    match fault:
        case "denied":
            service.denied = True
        case "key deleted":
            service.keys.clear()
        case "key replaced":
            with FakeKms() as other:
                service.keys = other.keys
        case "renamed":  # a wrapped key must not be accepted under another ID
            key["kid"] = "other"
        case "unreachable":
            monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
        case "no region":
            monkeypatch.delenv("AWS_REGION")
        case "invalid URI":
            key["kms"] = "gcpkms://projects/p"
        case "damaged":
            key["wrapped"] = "?"
    file.write_text(json.dumps({"keys": [key]}))
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    ran = await command("--address", "127.0.0.1:1", "pending")
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert f"{file}: {key['kms']}: " in ran.err
    assert f"`{ENCRYPTION_VARIABLE}` has this value" in ran.err
    assert cause in ran.err


async def test_no_file_is_created_if_the_kms_refuses(service: FakeKms, tmp_path: Path) -> None:
    """The error names the URI and the cause."""
    service.denied = True
    ran = await command("encryption", "keys", str(tmp_path / "keys.json"), "--kms", URI)
    assert (ran.code, f"{URI}: KMS did not create the key" in ran.err) == (2, True)
    assert not (tmp_path / "keys.json").exists()
