"""Encrypted entries in one table, which the credential stores in SQLite and in PostgreSQL have in common."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from waystation.auth.credential_service.credential_cipher import KEY_VARIABLE, CredentialCipher
from waystation.auth.credential_store import CredentialStore, Place
from waystation.core.errors import CredentialStoreError, StoreFailed
from waystation.storage import SqlTable, Transaction


class TableCredentialStore(CredentialStore):
    """Keeps encrypted entries in a table with the columns `place`, `value` and `until`."""

    def __init__(self, table: SqlTable, name: str) -> None:
        self._table, self._name = table, name
        self._write = (
            f"INSERT INTO {name} VALUES (?, ?, ?) "
            "ON CONFLICT (place) DO UPDATE SET value = excluded.value, until = excluded.until"
        )

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place, or None if there is none or it has expired."""
        name = self._cipher.name(place)
        with self._transaction(writing=False) as db:
            rows = db.run(f"SELECT value, until FROM {self._name} WHERE place = ?", name)
        if not rows or (rows[0][1] is not None and rows[0][1] <= time.time()):
            return None
        return self._cipher.decrypt(name, rows[0][0])

    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Store a value for `keep_s` seconds, by default forever, or remove it if `text` is None. This is atomic."""
        name, now = self._cipher.name(place), time.time()
        with self._transaction() as db:
            db.run(f"DELETE FROM {self._name} WHERE until <= ?", now)
            if text is None:
                db.run(f"DELETE FROM {self._name} WHERE place = ?", name)
            else:
                db.run(self._write, name, self._cipher.encrypt(name, text), None if keep_s is None else now + keep_s)

    async def store_id(self) -> str | None:
        """Return the ID of the file or table, or "" for a file that does not exist yet."""
        with self._converted_errors():
            return await self._table.store_id()

    @abstractmethod
    def _create_cipher(self) -> CredentialCipher:
        """Return the cipher with the key of the store."""

    @cached_property
    def _cipher(self) -> CredentialCipher:
        """The cipher. The first use checks that the table was written with its key.

        Threads and processes may do this at the same time.
        """
        cipher = self._create_cipher()
        name, value = cipher.check
        with self._transaction() as db:
            if db.is_postgres:  # SQLite has only one transaction that writes
                db.run(f"LOCK TABLE {self._name} IN SHARE ROW EXCLUSIVE MODE")
            [(total, present)] = db.run(
                f"SELECT COUNT(*), SUM(CASE WHEN place = ? THEN 1 ELSE 0 END) FROM {self._name}", name
            )
            if total and not present:
                raise CredentialStoreError(
                    f"The credentials at {self._table.place} were written with a different key. Provide that key in "
                    f"{KEY_VARIABLE} or in the key file, or delete them. Users will then have to log in again."
                )
            if not present:
                db.run(self._write, name, value, None)
        return cipher

    @contextmanager
    def _transaction(self, *, writing: bool = True) -> Iterator[Transaction]:
        with self._converted_errors(), self._table.transaction(writing=writing, erasing=writing) as db:
            yield db

    @contextmanager
    def _converted_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreFailed as error:
            problem = f"The credential store at {self._table.place} cannot be used: {error.problem}"
            raise CredentialStoreError(problem) from None
