"""A signature of one worker key is valid for every worker with that key."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.paths import write_secret
from waystation.activities import read_channels
from waystation.approvers.identity import Configuration
from waystation.client.connection import connection_settings
from waystation.core.errors import InvalidConfiguration
from waystation.key_set import EncryptionKeys, to_base64
from waystation.project_file import read_quotas
from waystation.worker_keys import WorkerKeys

CLAIMS = {"kind": "call", "call": "pay-1/fc-1"}


def test_a_key_verifies_only_what_it_signed() -> None:
    """Other claims, another key and a missing MAC are refused."""
    keys, others = WorkerKeys.generate(), WorkerKeys.generate()
    mac = keys.sign(CLAIMS)
    assert keys.verifies(mac, dict(reversed(CLAIMS.items())))
    assert not keys.verifies(mac, {**CLAIMS, "call": "pay-1/fc-2"})
    assert not keys.verifies(mac.model_copy(update={"code": mac.code[:-1]}), CLAIMS)
    assert not keys.verifies(None, CLAIMS)
    assert not others.verifies(mac, CLAIMS)
    assert not others.verifies(mac.model_copy(update={"key": others.sign(CLAIMS).key}), CLAIMS)


def test_a_created_file_is_private_and_never_replaced(tmp_path: Path) -> None:
    """A second worker that starts with the same folder reads the key of the first."""
    file = tmp_path / "new" / "keys.json"
    keys = WorkerKeys.read_or_create(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert WorkerKeys.read_or_create(file).verifies(keys.sign(CLAIMS), CLAIMS)
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]
    with pytest.raises(FileExistsError):
        WorkerKeys.generate().create(file)


def test_keys_can_be_rotated(tmp_path: Path) -> None:
    """The first key of the file signs, and all keys verify."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    WorkerKeys.generate().create(old)
    WorkerKeys.generate().create(new)
    both = [json.loads(file.read_text())["keys"][0] for file in (new, old)]
    rotated = tmp_path / "rotated.json"
    write_secret(rotated, json.dumps({"keys": both}))
    keys = WorkerKeys.read(rotated)
    assert keys.verifies(WorkerKeys.read(old).sign(CLAIMS), CLAIMS)
    assert WorkerKeys.read(new).verifies(keys.sign(CLAIMS), CLAIMS)


def test_keys_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting `env:NAME` names a variable that contains the key set."""
    file = tmp_path / "keys.json"
    WorkerKeys.generate().create(file)
    monkeypatch.setenv("MY_KEYS", file.read_text())
    assert WorkerKeys.read("env:MY_KEYS").verifies(WorkerKeys.read(file).sign(CLAIMS), CLAIMS)


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "no JSON",
        '{"keys": []}',
        '{"keys": [{"kty": "oct", "kid": "a", "k": "c2hvcnQ"}]}',
        '{"keys": [{"kty": "EC", "kid": "a", "k": "c2hvcnQ"}]}',
        '{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}',
        '{"keys": [{"kty": "oct", "kid": "a", "k": "?"}]}',
    ],
)
def test_an_unusable_file_is_refused_without_its_content(content: str, tmp_path: Path) -> None:
    """The message names the file and the command that creates one."""
    file = tmp_path / "keys.json"
    write_secret(file, content)
    with pytest.raises(InvalidConfiguration, match="waystation identity keys FILE") as refused:
        WorkerKeys.read(file)
    assert str(file) in str(refused.value)
    assert "c2hvcnQ" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o622])
def test_a_key_file_that_others_can_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    """The message has the command that corrects it."""
    file = tmp_path / "keys.json"
    WorkerKeys.generate().create(file)
    file.chmod(mode)
    with pytest.raises(InvalidConfiguration, match=f"other users can read .*Run: chmod 600 {file}"):
        WorkerKeys.read(file)


def test_two_keys_with_one_id_are_refused(tmp_path: Path) -> None:
    """Two keys with one ID are refused, because only one of them could decrypt."""
    keys = [{"kty": "oct", "kid": "a", "k": to_base64(bytes([number]) * 32)} for number in range(2)]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": keys}))
    with pytest.raises(InvalidConfiguration, match="two keys have the same `kid`"):
        EncryptionKeys.read(tmp_path / "keys.json")


SECRET = "aB3" * 15
GIVEN_AS_FILE = {
    "a key set": json.dumps({"keys": [{"kty": "oct", "kid": "a", "k": SECRET}]}),
    "a key": SECRET,
    "a PEM file": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
    "a key set as a variable": f'env:{{"k": "{SECRET}"}}',
    "a key as a variable": f"env:{SECRET}",
}


@pytest.mark.parametrize("value", GIVEN_AS_FILE.values(), ids=GIVEN_AS_FILE)
@pytest.mark.parametrize(
    "read",
    [WorkerKeys.read, EncryptionKeys.read, Configuration.read, read_channels, read_quotas],
    ids=["keys", "encryption keys", "identity", "channels", "quotas"],
)
def test_key_material_in_place_of_a_file_name_is_not_printed(
    read: Callable[[Any], object], value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key material is not printed, because errors end in logs, terminals and monitoring."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfiguration) as refused:
        read(value)
    assert SECRET not in str(refused.value)
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", value)
    with pytest.raises(InvalidConfiguration) as refused:
        connection_settings()
    assert SECRET not in str(refused.value)


def test_a_secret_in_an_identity_file_is_not_printed_and_must_be_private(tmp_path: Path) -> None:
    """The message names the key of the file, and the command that corrects the mode of a file."""
    file, key = tmp_path / "workers.toml", tmp_path / "key.json"
    file.write_text("")
    key.write_text(SECRET)
    configuration = Configuration.read(file)
    with pytest.raises(
        InvalidConfiguration, match=r"private_key: \(a value that is not a file name\) cannot be read: [A-Z][a-z ]+\.$"
    ):
        configuration.secret("envelope.private_key", SECRET)
    with pytest.raises(InvalidConfiguration, match=f"links.key: other users can read .*chmod 600 {key}"):
        configuration.secret("links.key", "key.json")
