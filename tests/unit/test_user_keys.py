"""The data of a user becomes unreadable in all copies once the user's key is deleted."""

import asyncio
import contextlib
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext, DataConverter, WorkflowSerializationContext

from tests.unit.test_encryption import SECRET, add_key, key_id
from waystation.auth import AuthCredential, AuthCredentialTypes
from waystation.auth.credential_service import EncryptedFileCredentialService, InMemoryCredentialService
from waystation.auth.credential_store import Bucket
from waystation.core.errors import CredentialStoreError, InvalidConfiguration, KeyMissing, StoreFailed
from waystation.core.scope_state import user_scope
from waystation.key_set import EncryptionKeys
from waystation.storage import (
    ENCRYPTION_VARIABLE,
    USER_KEYS_VARIABLE,
    BlobMissing,
    Blobs,
    KeyDeleted,
    ObjectFiles,
    Owner,
    decrypt_file,
    describe_missing_key,
    encrypt_file,
    find_user_keys,
    retrying,
    store_retries,
)
from waystation.storage.driver import offloading
from waystation.storage.user_keys import UserKeys

ANN = Owner("shop", "ann")
SESSION = "session/shop/ann/s"
AWAY = StoreFailed("postgresql://h/x", "it does not answer")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the location of an empty store of user keys."""
    return str(tmp_path / "user-keys.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.fixture
def keys(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a key file, with encryption and user keys switched on."""
    file = tmp_path / "encryption.json"
    EncryptionKeys.generate().create(file)
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    monkeypatch.setenv(USER_KEYS_VARIABLE, place)
    return file


def converter(workflow_id: str) -> DataConverter:
    """Return the converter for the payloads of a workflow."""
    return offloading(Blobs("unused")).with_context(WorkflowSerializationContext("default", workflow_id))


async def encode(workflow_id: str) -> Payload:
    """Return the secret as a payload of a workflow."""
    [payload] = await converter(workflow_id).encode([SECRET])
    return payload


def other_process(keys: Path) -> UserKeys:
    """Return the user keys of another process, whose cache is empty."""
    from waystation.storage.cipher import Cipher

    return UserKeys(os.environ[USER_KEYS_VARIABLE], Cipher(str(keys)))


def user_keys() -> UserKeys:
    """Return the user keys of this process."""
    process_keys = find_user_keys()
    assert process_keys is not None
    return process_keys


async def delete_key(owner: Owner = ANN) -> int:
    """Delete the keys of a user."""
    await user_keys().retire(app_name=owner.app, user_id=owner.user_id)
    return await user_keys().delete_user(app_name=owner.app, user_id=owner.user_id)


@pytest.mark.parametrize(
    ("workflow_id", "owner"),
    [
        (SESSION, ANN),
        (f"{SESSION}/1", ANN),
        (f"{SESSION}/1/fc-1", ANN),
        (f"{SESSION}/1~1", ANN),
        (user_scope("shop", "ann"), ANN),
        ("session/acme~~shop/a%2Fnn/s", Owner("acme~~shop", "a/nn")),
        ("invocation/acme~~shop/a%2Fnn/teller-4711/fc-1", Owner("acme~~shop", "a/nn")),
        ("app/acme~~shop", Owner.of_tenant("acme")),
        ("app/shop", None),
        ("teller-4711", None),
    ],
)
def test_the_owner_follows_from_the_workflow_id(workflow_id: str, owner: Owner | None) -> None:
    """Sessions, their invocations, forks and user state belong to a user, and app state belongs to its tenant."""
    assert Owner.of_workflow(workflow_id) == owner


async def test_payloads_of_a_user_have_their_own_key(keys: Path) -> None:
    """Every process with the store reads them; other workflows use the namespace's key."""
    payload, other, shared = await encode(SESSION), await encode("session/shop/bob/s"), await encode("teller-1")
    ids = [item.metadata["encryption-key-id"] for item in (payload, other, shared)]
    assert len(set(ids)) == 3
    assert ids[2] == key_id(keys).encode()
    assert await converter("elsewhere").decode([payload, other, shared]) == [SECRET] * 3
    assert other_process(keys).decrypt(ids[0], payload.data) is not None


async def test_data_is_unreadable_once_the_key_is_deleted(keys: Path) -> None:
    """Payloads and files show that they were deleted. Data of other users stays readable."""
    payload, other = await encode(SESSION), await encode("session/shop/bob/s")
    file = encrypt_file("f", SECRET.encode(), ANN)
    assert decrypt_file("f", file) == SECRET.encode()
    assert await delete_key() == 1
    codec = converter("elsewhere").payload_codec
    assert codec is not None
    [read, readable] = await codec.decode([payload, other])
    assert "[deleted]" in (describe_missing_key(read) or "")
    assert SECRET.encode() in readable.data
    with pytest.raises(KeyDeleted):
        decrypt_file("f", file)
    with pytest.raises(KeyDeleted):
        other_process(keys).decrypt(payload.metadata["encryption-key-id"], payload.data)


async def test_a_user_who_returns_gets_a_new_key(keys: Path) -> None:
    """New data is readable, and old data stays deleted."""
    before = await encode(SESSION)
    await delete_key()
    after = await encode(SESSION)
    assert after.metadata["encryption-key-id"] != before.metadata["encryption-key-id"]
    assert await converter("elsewhere").decode([after]) == [SECRET]


async def test_a_current_key_is_not_deleted(keys: Path) -> None:
    """Only retired keys are deleted, because a returned user may have received a new one in the meantime."""
    before = await encode(SESSION)
    await user_keys().retire(app_name="shop", user_id="ann")
    assert await converter("elsewhere").decode([before]) == [SECRET]
    after = await encode(SESSION)
    assert await user_keys().delete_user(app_name="shop", user_id="ann", dry_run=True) == 2
    assert await user_keys().delete_user(app_name="shop", user_id="ann") == 1
    assert await user_keys().list_user_apps(user_id="ann") == ["shop"]
    assert await converter("elsewhere").decode([after]) == [SECRET]


async def test_a_missing_store_is_not_a_deleted_key(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without the store names the setting, and its payloads stay encrypted."""
    payload = await encode(SESSION)
    monkeypatch.delenv(USER_KEYS_VARIABLE)
    codec = offloading(Blobs("unused")).payload_codec
    assert codec is not None
    [read] = await codec.decode([payload])
    assert read == payload
    assert USER_KEYS_VARIABLE in (describe_missing_key(read) or "")


@pytest.mark.parametrize("id", [b"", b"user-", b"user-1", b"user-" + b"0" * 32, b"user-\xff"])
async def test_a_forged_key_id_blocks_nothing(keys: Path, id: bytes) -> None:
    """A forged key ID, which anyone who may signal a workflow can send, leaves the payload encrypted."""
    payload = await encode(SESSION)
    payload.metadata["encryption-key-id"] = id
    codec = converter(SESSION).payload_codec
    assert codec is not None
    assert await codec.decode([payload]) == [payload]


async def test_an_unavailable_store_fails_instead_of_using_another_key(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unavailable store raises an error: data under another key would outlive the deletion of the key."""
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(tmp_path))  # a folder cannot be opened as a database
    with pytest.raises(StoreFailed):
        await encode(SESSION)


async def test_the_namespace_key_is_rotated(keys: Path) -> None:
    """A user's key stays readable, because it names the key that wraps it."""
    payload = await encode(SESSION)
    add_key(keys)
    assert other_process(keys).decrypt(payload.metadata["encryption-key-id"], payload.data) is not None


async def test_nothing_is_encrypted_if_the_key_that_wraps_a_users_key_is_missing(keys: Path) -> None:
    """The error names the user, the missing key and the remedy, instead of using another key for the user."""
    await encode(SESSION)
    other = keys.with_name("other.json")
    EncryptionKeys.generate().create(other)
    process = other_process(other)
    with pytest.raises(StoreFailed, match=rf"'ann' cannot be used: .*{key_id(keys)}.* Add it to the key file"):
        process.encrypt(ANN, b"x")


async def test_processes_agree_on_a_new_key(keys: Path) -> None:
    """Several processes that need a new key at the same time use one key."""
    processes = [other_process(keys) for _ in range(8)]
    made = await asyncio.gather(*(asyncio.to_thread(process.encrypt, ANN, b"x") for process in processes))
    assert len({id for id, _ in made}) == 1


async def test_artifacts_of_a_user_are_unreadable_once_the_key_is_deleted(keys: Path, tmp_path: Path) -> None:
    """Copies of the store in backups become unreadable, too."""
    files = ObjectFiles(tmp_path / "artifacts")
    await files.put("note", SECRET.encode(), owner=ANN)
    assert await files.get("note") == SECRET.encode()
    await delete_key()
    with pytest.raises(StoreFailed, match=r"\[deleted\]"):
        await files.get("note")


async def test_the_store_contains_no_usable_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are wrapped, and a deleted one leaves only its ID, neither the user nor the wrapped key."""
    file, place = tmp_path / "encryption.json", tmp_path / "user-keys.db"
    EncryptionKeys.generate().create(file)
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(place))
    await encode("session/shop/tweety/s")
    with sqlite3.connect(place) as database:
        [(wrapped,)] = database.execute("SELECT wrapped FROM waystation_user_keys").fetchall()
    database.close()
    await delete_key(Owner("shop", "tweety"))
    content = b"".join(part.read_bytes() for part in find_parts(place))
    assert (wrapped.encode() in content, b"tweety" in content, b"user-" in content) == (False, False, True)


def find_parts(place: Path) -> list[Path]:
    """Return the files of an SQLite database."""
    return list(place.parent.glob(f"{place.name}*"))


async def test_a_large_payload_is_stored_once(keys: Path, tmp_path: Path) -> None:
    """A worker that encodes a large result twice uses the user's current key."""
    large = f"{SECRET} " * 50_000
    blobs = Blobs(tmp_path / "store")
    process = offloading(blobs)

    async def store() -> int:
        context = WorkflowSerializationContext("default", SESSION)
        [reference] = await process.with_context(context).encode([large])
        assert await process.decode([reference]) == [large]
        return len(await blobs.list_stored())

    assert [await store(), await store()] == [1, 1]
    await delete_key()
    assert await store() == 2


def test_user_keys_require_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program does not start without the namespace's keys, because data would stay readable."""
    monkeypatch.delenv(ENCRYPTION_VARIABLE, raising=False)
    monkeypatch.setenv(USER_KEYS_VARIABLE, "user-keys.db")
    with pytest.raises(InvalidConfiguration, match=ENCRYPTION_VARIABLE):
        offloading(Blobs("unused"))


async def test_archived_logs_of_a_user_are_unreadable_once_the_key_is_deleted(keys: Path, tmp_path: Path) -> None:
    """Pruning still moves them to the trash and removes them from there."""
    blobs = Blobs(tmp_path / "store")
    digest = await blobs.put(SECRET.encode(), workflow_id=f"{SESSION}/1")
    await blobs.discard(digest)
    assert await Blobs(tmp_path / "store").get(digest) == SECRET.encode()
    await delete_key()
    with pytest.raises(BlobMissing, match=r"\[deleted\]"):
        await blobs.get(digest)
    await blobs.restore(digest)
    await blobs.discard(digest)
    await blobs.purge(digest)
    assert await blobs.list_stored() == []


BUCKET = Bucket("shop", "ann", "calendar")
LOGIN = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=SECRET)


async def test_credentials_of_a_user_are_unreadable_once_the_key_is_deleted(keys: Path, tmp_path: Path) -> None:
    """A restored copy of the credential store asks the user to log in again."""
    store = EncryptedFileCredentialService(tmp_path / "credentials.db")
    store.keep(BUCKET, LOGIN)
    assert store.credential(BUCKET) == LOGIN
    await delete_key()
    assert store.credential(BUCKET) is None
    store.keep(BUCKET, LOGIN)  # the new login is encrypted with a new key
    assert store.credential(BUCKET) == LOGIN


def test_the_credential_store_receives_only_encrypted_credentials(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential from before the user had a key stays readable; without the key, the error names the store."""
    store = InMemoryCredentialService()
    monkeypatch.delenv(USER_KEYS_VARIABLE)
    store.keep(BUCKET, LOGIN)
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(keys.with_name("credential-keys.db")))
    assert store.credential(BUCKET) == LOGIN
    store.keep(BUCKET, LOGIN)
    assert SECRET not in (store.read(("credential", *BUCKET)) or SECRET)
    monkeypatch.delenv(USER_KEYS_VARIABLE)
    with pytest.raises(CredentialStoreError, match=USER_KEYS_VARIABLE):
        store.credential(BUCKET)


async def test_all_data_of_a_tenant_is_unreadable_once_its_keys_are_deleted(keys: Path) -> None:
    """The keys of the tenant's users in all apps and of its app state are deleted, but no key of another tenant."""
    theirs = ["session/acme~~shop/ann/s", "session/acme~~desk/bob/s", "app/acme~~shop", "user/acme~~shop/ann"]
    others = ["session/acme/ann/s", "session/acm-~~shop/ann/s", "session/acmee~~shop/ann/s", "app/acme2~~shop"]
    payloads = [await encode(id) for id in (*theirs, *others)]
    assert await user_keys().delete_tenant("acme", dry_run=True) == 3  # Ann's state has the same key as her sessions
    await user_keys().retire_tenant("acme")
    assert await user_keys().delete_tenant("acme") == 3
    codec = converter("elsewhere").payload_codec
    assert codec is not None
    read = [SECRET.encode() in payload.data for payload in await codec.decode(payloads)]
    assert read == [False] * 4 + [True] * 4
    later = await encode("app/acme~~shop")
    assert await converter("elsewhere").decode([later]) == [SECRET]


@pytest.mark.parametrize(
    ("error", "retry_s", "method", "requests"),
    [
        (AWAY, 15.0, "search_memory", 3),
        (AWAY, 0.0, "search_memory", 1),
        (KeyMissing("no key"), 15.0, "search_memory", 1),
        (AWAY, 15.0, "save_artifact", 1),
    ],
)
async def test_an_unavailable_store_is_retried(
    error: Exception, retry_s: float, method: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unavailable store causes a retry, because a key might be missing, or an artifact might be saved twice."""
    monkeypatch.setattr(store_retries, "PAUSE_S", 0.0)
    answer = AsyncMock(side_effect=[error, error, None])
    with contextlib.nullcontext() if requests == 3 else pytest.raises(StoreFailed):
        await getattr(retrying(SimpleNamespace(**{method: answer}), retry_s), method)()
    assert answer.await_count == requests


async def test_an_activity_waits_for_the_store_of_user_keys(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activity waits for the store; otherwise a call that may run only once would fail or lose its result."""
    place = ActivitySerializationContext(
        namespace="default",
        workflow_id=SESSION,
        workflow_type="w",
        activity_type="a.pay",
        activity_id="1",
        activity_task_queue="q",
        is_local=False,
    )
    own, store = offloading(Blobs("unused")).with_context(place), user_keys()
    current = store._read_current(ANN)
    monkeypatch.setattr(store_retries, "PAUSE_S", 0.0)
    monkeypatch.setattr(store, "_read_current", Mock(side_effect=[AWAY, AWAY, current]))
    monkeypatch.setattr(store, "_find", Mock(side_effect=[AWAY, AWAY, current[1]]))
    assert await own.decode(await own.encode([SECRET])) == [SECRET]
