"""A credential store in PostgreSQL, encrypted with a key that is not stored in the database."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from waystation.auth.credential_service.credential_cipher import KEY_VARIABLE, CredentialCipher, parse_key
from waystation.auth.credential_store import CredentialStore, Place
from waystation.core import CredentialStoreError, StoreFailed
from waystation.storage import PostgresDatabase

if TYPE_CHECKING:
    from waystation.storage.postgres import Connection

_SCHEMA = ("CREATE TABLE IF NOT EXISTS waystation_credentials (place BYTEA PRIMARY KEY, value BYTEA, until FLOAT8)",)
_WRITE = """
INSERT INTO waystation_credentials VALUES (%s, %s, %s)
ON CONFLICT (place) DO UPDATE SET value = excluded.value, until = excluded.until
"""
_PRESENT = "SELECT COUNT(*), COUNT(*) FILTER (WHERE place = %s) FROM waystation_credentials"


class PostgresCredentialService(CredentialStore):
    """Keeps credentials in a table that several machines can share.

    Values are encrypted with AES-256-GCM and names are keyed digests, so the database reveals only the number, sizes
    and expiry times of its entries. All machines need the same key.
    """

    def __init__(self, url: str, *, key: str | bytes | None = None) -> None:
        """Set the database and the key. Tables are created when first needed.

        Args:
            url: A URL such as `postgresql://user@host/database`.
            key: A key of 32 bytes, raw or in base64. By default, it is read from the environment variable
                `WAYSTATION_CREDENTIAL_KEY`.

        Raises:
            CredentialStoreError: The URL is not valid, or the extra `postgres` is not installed.
        """
        with _converted_errors():
            self._database = PostgresDatabase(url, "waystation_credentials", _SCHEMA)
        self._configured_key = key

    @property
    def place(self) -> str:
        """The URL of the database without credentials."""
        return self._database.place

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place, or None if there is none or it has expired."""
        name = self._cipher.name(place)
        with self._transaction() as db:
            row = db.execute("SELECT value, until FROM waystation_credentials WHERE place = %s", [name]).fetchone()
        if row is None or (isinstance(row[1], float) and row[1] <= time.time()):
            return None
        assert isinstance(row[0], bytes)
        return self._cipher.decrypt(name, row[0])

    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Store a value for `keep_s` seconds, by default forever, or remove it if `text` is None. This is atomic."""
        name, now = self._cipher.name(place), time.time()
        with self._transaction() as db:
            db.execute("DELETE FROM waystation_credentials WHERE until <= %s", [now])
            if text is None:
                db.execute("DELETE FROM waystation_credentials WHERE place = %s", [name])
            else:
                db.execute(_WRITE, [name, self._cipher.encrypt(name, text), None if keep_s is None else now + keep_s])

    async def store_id(self) -> str | None:
        """Return the ID of the table."""

        def read() -> str | None:
            with self._transaction() as db:
                return self._database.read_store_id(db)

        return await asyncio.to_thread(read)

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Lock a place during a `with` block, for all threads and processes that use the database."""
        lock = int.from_bytes(self._cipher.name(place)[:8], signed=True)
        # Wait for threads of this process first, so that only one of them needs a connection.
        with super().held(place), _converted_errors(), self._database.lock(lock):
            yield

    @cached_property
    def _cipher(self) -> CredentialCipher:
        """The cipher. The first use checks that the table was written with its key."""
        key = self._configured_key or os.environ.get(KEY_VARIABLE)
        if not key:
            raise CredentialStoreError(
                f"The credential store at {self.place} requires a key. Set {KEY_VARIABLE} to the same key on all "
                "machines; `openssl rand -base64 32` creates one."
            )
        cipher = CredentialCipher(parse_key(key, "`key`" if self._configured_key else KEY_VARIABLE), self.place)
        name, value = cipher.check
        with self._transaction() as db:
            db.execute("LOCK TABLE waystation_credentials IN SHARE ROW EXCLUSIVE MODE")
            [(total, present)] = db.execute(_PRESENT, [name]).fetchall()
            if total and not present:
                raise CredentialStoreError(
                    f"The credentials at {self.place} were written with a different key. Provide that key in "
                    f"{KEY_VARIABLE}, or delete them. Users will then have to log in again."
                )
            db.execute("INSERT INTO waystation_credentials VALUES (%s, %s) ON CONFLICT DO NOTHING", [name, value])
        return cipher

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with _converted_errors(), self._database.transaction() as connection:
            yield connection


@contextmanager
def _converted_errors() -> Iterator[None]:
    try:
        yield
    except StoreFailed as error:
        raise CredentialStoreError(str(error)) from None
