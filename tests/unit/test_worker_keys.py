"""Worker keys: what one key signed, every worker with that key verifies."""

import json
import stat
from pathlib import Path

import pytest

from waystation.core import InvalidConfiguration
from waystation.worker_keys import WorkerKeys

CLAIMS = {"kind": "call", "call": "pay-1/fc-1"}


def test_a_key_verifies_only_what_it_signed() -> None:
    """Other claims, another key and a missing MAC do not pass."""
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
    rotated.write_text(json.dumps({"keys": both}))
    keys = WorkerKeys.read(rotated)
    assert keys.verifies(WorkerKeys.read(old).sign(CLAIMS), CLAIMS)
    assert WorkerKeys.read(new).verifies(keys.sign(CLAIMS), CLAIMS)


def test_keys_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`env:NAME` names a variable that contains the key set."""
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
    file.write_text(content)
    with pytest.raises(InvalidConfiguration, match="waystation identity keys FILE") as refused:
        WorkerKeys.read(file)
    assert str(file) in str(refused.value)
    assert "c2hvcnQ" not in str(refused.value)
