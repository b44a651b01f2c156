"""Credential stores: contents, locks between users, and data that is readable without a key."""

import base64
import logging
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from tests.paths import ROOT
from waystation.auth import APIKey, APIKeyIn, AuthConfig, AuthCredential, AuthCredentialTypes, CredentialStore
from waystation.auth.credential_service.credential_cipher import KEY_VARIABLE
from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_service.postgres_credential_service import PostgresCredentialService
from waystation.auth.credential_service.store_location import open_store
from waystation.auth.credential_store import Bucket, WaitingCall, begin_login, find_bucket
from waystation.core.errors import CredentialStoreError
from waystation.core.secrets import HIDDEN, Secret
from waystation.logs import configure_logs
from waystation.tools.session_view import Session
from waystation.tools.tool_context import ToolContext

CANARY = "canary-51be07"
KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
OTHER_KEY = base64.urlsafe_b64encode(bytes(32)).decode()


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the key from the environment."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture(params=["memory", "file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CredentialStore:
    """Return a store of each kind."""
    kinds: dict[str, Callable[[], CredentialStore]] = {
        "memory": InMemoryCredentialService,
        "file": lambda: EncryptedFileCredentialService(tmp_path / "deep" / "credentials"),
        "postgres": lambda: PostgresCredentialService(request.getfixturevalue("postgres"), key=KEY),
    }
    return kinds[request.param]()


def context(user: str = "ann", app: str = "desk") -> ToolContext:
    """Return the context of a user of an app."""
    return ToolContext(session=Session(id="s", app_name=app, user_id=user))


def config(key: str = "crm") -> AuthConfig:
    """Return a configuration with a key."""
    return AuthConfig(auth_scheme=APIKey(in_=APIKeyIn.header, name="X-Key"), credential_key=key)


def credential(value: str, key: str = "crm") -> AuthConfig:
    """Return a configuration with a user's credential."""
    credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=value)
    return config(key).model_copy(update={"exchanged_auth_credential": credential})


async def test_a_saved_credential_is_loaded(store: CredentialStore) -> None:
    """The latest credential is loaded unchanged."""
    assert await store.load_credential(config(), context()) is None
    await store.save_credential(credential("first"), context())
    await store.save_credential(credential("second"), context())
    loaded = await store.load_credential(config(), context())
    assert loaded == credential("second").exchanged_auth_credential


@pytest.mark.parametrize(
    "other",
    [(context(user="bob"), "crm"), (context(app="shop"), "crm"), (context(), "erp")],
    ids=["user", "app", "key"],
)
async def test_each_user_application_and_key_has_a_credential_of_its_own(
    store: CredentialStore, other: tuple[ToolContext, str]
) -> None:
    """A credential is never loaded for another user, app or key."""
    await store.save_credential(credential("mine"), context())
    who, key = other
    assert await store.load_credential(config(key), who) is None


@pytest.mark.parametrize("names", [("a", "b:c"), ("a:b", "c"), ("a\0b", "c"), ("ä" * 500, "\n")])
def test_names_of_any_text_stay_apart(store: CredentialStore, names: tuple[str, str]) -> None:
    """Names that are equal when joined still have different credentials."""
    store.write(("x", *names), "one")
    store.write(("x", "".join(names)), "two")
    assert store.read(("x", *names)) == "one"


def test_a_removed_or_expired_credential_is_gone(store: CredentialStore) -> None:
    """A removed or expired credential is not loaded, and removing a missing one raises nothing."""
    store.write(("a",), "text")
    store.write(("a",), None)
    store.write(("a",), None)
    store.write(("b",), "text", keep_s=-1.0)
    store.write(("c",), "text", keep_s=60.0)
    assert [store.read((name,)) for name in "abc"] == [None, None, "text"]


def test_the_holder_of_a_lock_keeps_others_waiting(store: CredentialStore) -> None:
    """Threads that increment a number under the lock lose no increment."""
    store.write(("n",), "0")

    def add() -> None:
        for _ in range(5):
            with store.held(("n",)):
                store.write(("n",), str(int(store.read(("n",)) or 0) + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read(("n",)) == "20"


def test_an_error_releases_the_lock(store: CredentialStore) -> None:
    """The lock is free after an exception."""
    with pytest.raises(ZeroDivisionError), store.held(("n",)):
        _ = 1 // 0
    with store.held(("n",)):
        assert store.read(("n",)) is None


def test_a_wait_for_a_lock_ends(store: CredentialStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for a lock times out if a thread or process hangs while it holds the lock."""
    for module in ("credential_store", "credential_service.encrypted_file_credential_service"):
        monkeypatch.setattr(f"waystation.auth.{module}.LOCK_LIMIT_S", 0.01)
    with store.held(("n",)), ThreadPoolExecutor() as pool:
        waiting = pool.submit(lambda: store.held(("n",)).__enter__())
        assert "has held the lock" in str(waiting.exception())


@pytest.mark.slow
def test_processes_share_a_file_and_wait_for_one_another(tmp_path: Path) -> None:
    """Concurrent processes lose no increment, even when they create the file."""
    program = (
        "import sys; from waystation.auth.credential_service import EncryptedFileCredentialService as S\n"
        "store = S(sys.argv[1])\n"
        "for _ in range(10):\n"
        "    with store.held(('n',)):\n"
        "        store.write(('n',), str(int(store.read(('n',)) or 0) + 1))\n"
    )
    path = tmp_path / "new" / "credentials"
    running = [subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert EncryptedFileCredentialService(path).read(("n",)) == "30"


def files_of(path: Path) -> Iterator[bytes]:
    """Yield the contents of all files of a store except the key file."""
    for file in path.parent.iterdir():
        if file.suffix != ".key":
            yield file.read_bytes()


async def test_a_file_reveals_nothing_without_its_key(tmp_path: Path) -> None:
    """The file reveals neither secrets nor users, even after a replacement or removal."""
    path = tmp_path / "credentials"
    store = EncryptedFileCredentialService(path)
    await store.save_credential(credential(CANARY, key="crm-of-acme"), context(user="ann@acme.example"))
    await store.save_credential(credential("new", key="crm-of-acme"), context(user="ann@acme.example"))
    store.write(("plain",), CANARY)
    store.write(("plain",), None)
    for data in files_of(path):
        assert not any(name in data for name in (CANARY.encode(), b"acme", b"crm", b"api"))


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_file_and_its_key_are_private(tmp_path: Path) -> None:
    """Files are created with private modes, and a key that others can read is refused."""
    store = EncryptedFileCredentialService(tmp_path / "own" / "credentials")
    store.write(("a",), "text")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "own").iterdir()}
    assert modes == {"credentials": 0o600, "credentials.key": 0o600}
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    store.key_path.chmod(0o644)
    with pytest.raises(CredentialStoreError, match="chmod 600"):
        EncryptedFileCredentialService(store.path).read(("a",))


def test_nothing_is_made_before_it_is_used(tmp_path: Path) -> None:
    """A worker whose tools need no credential creates no file."""
    EncryptedFileCredentialService(tmp_path / "deep" / "credentials")
    assert list(tmp_path.iterdir()) == []


def test_a_key_in_the_environment_precedes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key file is written if the environment has a key."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    path = tmp_path / "credentials"
    EncryptedFileCredentialService(path).write(("a",), "text")
    assert [file.name for file in tmp_path.iterdir()] == ["credentials"]
    monkeypatch.delenv(KEY_VARIABLE)
    assert EncryptedFileCredentialService(path, key=base64.urlsafe_b64decode(KEY)).read(("a",)) == "text"


def test_another_key_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """A wrong key is refused with a remedy and changes nothing."""
    path = tmp_path / "credentials"
    EncryptedFileCredentialService(path, key=KEY).write(("a",), "text")
    with pytest.raises(CredentialStoreError, match="written with a different key"):
        EncryptedFileCredentialService(path, key=OTHER_KEY).write(("a",), "other")
    assert EncryptedFileCredentialService(path, key=KEY).read(("a",)) == "text"


@pytest.mark.parametrize("key", ["", "short", "!" * 44, "é" * 40])
def test_an_invalid_key_is_refused_without_being_quoted(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the command that creates a key."""
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(CredentialStoreError, match="openssl rand -base64 32") as caught:
        EncryptedFileCredentialService(tmp_path / "credentials").read(("a",))
    assert not key or key not in str(caught.value)


def test_entries_cannot_be_exchanged(tmp_path: Path) -> None:
    """A writer of the file can damage credentials, but not assign them to another user."""
    store = EncryptedFileCredentialService(tmp_path / "credentials", key=KEY)
    store.write(("ann",), "hers")
    store.write(("bob",), "his")
    with sqlite3.connect(store.path) as connection:
        rows = connection.execute("SELECT place, value FROM entries WHERE length(value) > 28").fetchall()
        (one, hers), (two, his) = sorted(rows, key=lambda row: len(row[1]))
        connection.execute("UPDATE entries SET value = ? WHERE place = ?", (his, one))
        connection.execute("UPDATE entries SET value = ? WHERE place = ?", (hers, two))
    connection.close()
    for name in ("ann", "bob"):
        with pytest.raises(CredentialStoreError, match="damaged"):
            store.read((name,))


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at" * 50])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    """Another file is refused and left unchanged."""
    path = tmp_path / "credentials"
    path.write_bytes(content)
    with pytest.raises(CredentialStoreError, match="cannot be used"):
        EncryptedFileCredentialService(path).read(("a",))
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error names the file and the option."""
    (tmp_path / "file").touch()
    with pytest.raises(CredentialStoreError, match=r"cannot be created: .* --credentials"):
        EncryptedFileCredentialService(tmp_path / "file" / "credentials").read(("a",))


def own_store() -> CredentialStore:
    """Return a store, like an author's factory."""
    return InMemoryCredentialService()


def test_a_configuration_names_a_store(tmp_path: Path) -> None:
    """A configuration can name a file, a store object or a factory."""
    assert isinstance(open_store(tmp_path / "credentials"), EncryptedFileCredentialService)
    assert isinstance(open_store(f"python:{__name__}:own_store"), InMemoryCredentialService)
    assert isinstance(
        open_store("python:waystation.auth.credential_service:InMemoryCredentialService"), InMemoryCredentialService
    )


@pytest.mark.parametrize(
    "place",
    ["python:", "python:no_such_module:x", "python:json:nothing", "python:json:dumps", "keyring:desk"],
)
def test_an_invalid_location_of_a_store_is_refused(place: str) -> None:
    """The error names the configured value."""
    with pytest.raises(CredentialStoreError, match=place):
        open_store(place)


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    """Another process gets the lock of a process that was killed."""
    path = tmp_path / "credentials"
    program = (
        "import os, sys; from waystation.auth.credential_service import EncryptedFileCredentialService as S\n"
        "with S(sys.argv[1]).held(('n',)):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT).returncode == -9
    with EncryptedFileCredentialService(path).held(("n",)):
        pass


def test_a_secret_among_the_fields_of_a_log_event_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    """Every log renderer hides secrets."""
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        for form in ("json", "console"):
            configure_logs(form)
            structlog.get_logger("x").info("tool.ran", token=Secret(CANARY))
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
    output = capsys.readouterr().err
    assert output.count("tool.ran") == output.count(HIDDEN) == 2
    assert CANARY not in output


async def test_all_credentials_of_a_user_are_deleted(store: CredentialStore) -> None:
    """Deletes the credentials of every key and unfinished logins; other users and apps keep theirs."""
    for user, app, key in (
        ("ann", "desk", "crm"),
        ("ann", "desk", "mail"),
        ("ann", "shop", "crm"),
        ("bob", "desk", "crm"),
    ):
        await store.save_credential(credential("secret", key), context(user, app))
    begin_login(store, config("sso"), Bucket("desk", "ann", "sso"), WaitingCall("i", "fc-1"))
    assert await store.list_user_apps(user_id="ann") == ["desk", "shop"]
    assert await store.delete_user(app_name="desk", user_id="ann", dry_run=True) == 3
    assert await store.load_credential(config(), context()) is not None
    assert await store.delete_user(app_name="desk", user_id="ann") == 3
    assert await store.delete_user(app_name="desk", user_id="ann") == 0
    loaded = [await store.load_credential(config(key), context()) for key in ("crm", "mail")]
    assert (loaded, find_bucket(store, WaitingCall("i", "fc-1"))) == ([None, None], None)
    assert await store.list_user_apps(user_id="ann") == ["shop"]
    for user, app in (("ann", "shop"), ("bob", "desk")):
        assert await store.load_credential(config(), context(user, app)) is not None
