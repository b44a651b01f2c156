"""Keys of single users and tenants, which are deleted with their data; see `encryption`.

A key is random, and stored wrapped by the namespace's key. It belongs to an owner: one user in one app, or a tenant.
"""

import asyncio
import json
import re
import secrets
import threading
from pathlib import Path

from cachetools import TTLCache
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waystation.core.errors import StoreFailed
from waystation.storage.cipher import NONCE_BYTES, Cipher
from waystation.storage.owners import KeyDeleted, Owner
from waystation.storage.sql_table import SqlTable

CACHE_S = 5.0
"""How long a process may use a key after the key was retired, in seconds."""
_MAX_CACHED = 10_000
_KEY_BYTES = 32
_ID = re.compile(rb"user-[0-9a-f]{32}")
_TABLE = "waystation_user_keys"
# Both SQLite and PostgreSQL accept these statements.
_SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS {_TABLE} (
    id TEXT PRIMARY KEY,
    app TEXT NOT NULL,  -- JSON, because PostgreSQL cannot store null characters; empty once the key is deleted
    user_id TEXT NOT NULL,  -- JSON; `""` for the key of a tenant
    is_current INTEGER NOT NULL,
    wrapped_by TEXT NOT NULL,
    wrapped TEXT  -- in hexadecimal; NULL once the key is deleted
)""",
    f"CREATE UNIQUE INDEX IF NOT EXISTS {_TABLE}_current ON {_TABLE} (app, user_id) WHERE is_current = 1",
)
_CURRENT = f"SELECT id, wrapped_by, wrapped FROM {_TABLE} WHERE app = ? AND user_id = ? AND is_current = 1"
_CREATE = f"INSERT INTO {_TABLE} VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT DO NOTHING"
_FIND = f"SELECT wrapped_by, wrapped FROM {_TABLE} WHERE id = ?"
_APPS = f"SELECT DISTINCT app FROM {_TABLE} WHERE user_id = ?"
_OF_OWNER = "app = ? AND user_id = ?"
_OF_TENANT = "SUBSTR(app, 1, LENGTH(?)) = ?"
_RETIRE = f"UPDATE {_TABLE} SET is_current = 0 WHERE "
_COUNT = f"SELECT COUNT(*) FROM {_TABLE} WHERE "
_DELETE = f"UPDATE {_TABLE} SET app = '', user_id = '', wrapped = NULL, wrapped_by = '' WHERE "
_IS_RETIRED = " AND is_current = 0"


class UserKeys:
    """Encrypts with the keys of users, which are created when first needed.

    All methods raise StoreFailed if the store is not available.
    """

    def __init__(self, place: str | Path, cipher: Cipher) -> None:
        """Use the keys in an SQLite file or a PostgreSQL database, wrapped by those of `cipher`."""
        self._table = SqlTable.at(place, _TABLE, _SCHEMA)
        self._cipher, self.cache_s = cipher, CACHE_S
        self._lock = threading.Lock()  # of the caches
        self._current: TTLCache[Owner, tuple[bytes, AESGCM]] = TTLCache(_MAX_CACHED, CACHE_S)
        self._known: TTLCache[bytes, AESGCM] = TTLCache(_MAX_CACHED, CACHE_S)

    def get_current_id(self, owner: Owner) -> bytes:
        """Return the ID of the key that encrypts an owner's data."""
        return self._get_current(owner)[0]

    def encrypt(self, owner: Owner, data: bytes, bound_to: bytes = b"") -> tuple[bytes, bytes]:
        """Return the ID of the owner's key, and the encrypted data."""
        key_id, key = self._get_current(owner)
        nonce = secrets.token_bytes(NONCE_BYTES)
        return key_id, nonce + key.encrypt(nonce, data, bound_to)

    def _get_current(self, owner: Owner) -> tuple[bytes, AESGCM]:
        with self._lock:
            current = self._current.get(owner)
        if current is None:
            current = self._read_current(owner)
            with self._lock:
                self._current[owner] = current
        return current

    def decrypt(self, key_id: bytes, data: bytes, bound_to: bytes = b"") -> bytes | None:
        """Return decrypted data, or None if the store has no key with this ID.

        Raises:
            KeyDeleted: The key was deleted.
            ValueError: The data is damaged.
        """
        with self._lock:
            key = self._known.get(key_id)
        if key is None:
            if not _ID.fullmatch(key_id) or (key := self._find(key_id.decode())) is None:
                return None
            with self._lock:
                self._known[key_id] = key
        try:
            return key.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            raise ValueError("it is damaged, or was not encrypted with the key that it names.") from None

    def needs_store(self, owner: Owner | None, key_ids: list[bytes]) -> bool:
        """Return whether encrypting for an owner, or decrypting with these keys, reads the store."""
        with self._lock:
            return (owner is not None and owner not in self._current) or any(id not in self._known for id in key_ids)

    def _read_current(self, owner: Owner) -> tuple[bytes, AESGCM]:
        names = json.dumps(owner.app), json.dumps(owner.user_id)
        with self._table.transaction() as db:
            if not (rows := db.run(_CURRENT, *names)):
                id = f"user-{secrets.token_hex(16)}"
                wrapped = self._cipher.encrypt(secrets.token_bytes(_KEY_BYTES), id.encode()).hex()
                db.run(_CREATE, id, *names, self._cipher.key_id.decode(), wrapped)
                rows = db.run(_CURRENT, *names)
        [(id, wrapped_by, wrapped)] = rows
        try:
            return str(id).encode(), self._unwrap(str(id), wrapped_by, wrapped)
        except ValueError as error:  # nothing may be written with another key
            problem = f"the current key of user {owner.user_id!r} cannot be used: {error}"
            raise StoreFailed(self._table.place, problem) from None

    def _find(self, id: str) -> AESGCM | None:
        with self._table.transaction() as db:
            rows = db.run(_FIND, id)
        return self._unwrap(id, *rows[0]) if rows else None

    def _unwrap(self, id: str, wrapped_by: str, wrapped: str | None) -> AESGCM:
        if wrapped is None:
            raise KeyDeleted
        key = self._cipher.decrypt(wrapped_by.encode(), bytes.fromhex(wrapped), id.encode())
        if key is None:
            remedy = "Add it to the key file."
            raise ValueError(f"it is wrapped by the encryption key {wrapped_by!r}, which is not available. {remedy}")
        return AESGCM(key)

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the keys of the apps in which a user has a key."""
        rows = await self._table.do(lambda db: db.run(_APPS, json.dumps(user_id)))
        return sorted(json.loads(app) for (app,) in rows)

    async def retire(self, *, app_name: str, user_id: str) -> None:
        """Stop encrypting with a user's key. Other processes may still use it for `CACHE_S`."""
        await asyncio.to_thread(self._retire, _OF_OWNER, (json.dumps(app_name), json.dumps(user_id)))

    async def retire_tenant(self, tenant: str) -> None:
        """Stop encrypting with the keys of a tenant and of its users. Other processes may use them for `CACHE_S`."""
        await asyncio.to_thread(self._retire, _OF_TENANT, _match_tenant(tenant))

    def _retire(self, where: str, names: tuple[str, str]) -> None:
        with self._table.transaction() as db:
            db.run(_RETIRE + where, *names)
        with self._lock:
            self._current.clear()

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete a user's retired keys in an app, and return their number.

        With `dry_run`, count all keys of the user in the app instead.
        """
        return await asyncio.to_thread(self._delete, _OF_OWNER, (json.dumps(app_name), json.dumps(user_id)), dry_run)

    async def delete_tenant(self, tenant: str, *, dry_run: bool = False) -> int:
        """Delete the retired keys of a tenant and of its users, and return their number. Like `delete_user`."""
        return await asyncio.to_thread(self._delete, _OF_TENANT, _match_tenant(tenant), dry_run)

    def _delete(self, where: str, names: tuple[str, str], dry_run: bool) -> int:
        with self._table.transaction(erasing=True) as db:
            [(count,)] = db.run(_COUNT + where + ("" if dry_run else _IS_RETIRED), *names)
            if not dry_run:
                db.run(_DELETE + where + _IS_RETIRED, *names)
        with self._lock:
            self._known.clear()
        return int(count)


def _match_tenant(tenant: str) -> tuple[str, str]:
    """Return the parameters of `_OF_TENANT`. The app's column has the key of an app as JSON."""
    start = json.dumps(f"{tenant}~~")[:-1]
    return start, start
