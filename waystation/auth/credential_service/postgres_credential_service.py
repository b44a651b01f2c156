"""A credential store in PostgreSQL, encrypted with a key that is not stored in the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from waystation.auth.credential_service.credential_cipher import KEY_VARIABLE, CredentialCipher, parse_key
from waystation.auth.credential_service.table_credential_store import TableCredentialStore
from waystation.auth.credential_store import Place
from waystation.core.errors import CredentialStoreError, StoreFailed
from waystation.storage import PostgresDatabase, SqlTable

_TABLE = "waystation_credentials"
_SCHEMA = (f"CREATE TABLE IF NOT EXISTS {_TABLE} (place BYTEA PRIMARY KEY, value BYTEA, until FLOAT8)",)


class PostgresCredentialService(TableCredentialStore):
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
        try:
            self._database = PostgresDatabase(url, _TABLE, _SCHEMA)
        except StoreFailed as error:
            raise CredentialStoreError(str(error)) from None
        super().__init__(SqlTable(self._database), _TABLE)
        self._configured_key = key

    @property
    def place(self) -> str:
        """The URL of the database without credentials."""
        return self._database.place

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Lock a place during a `with` block, for all threads and processes that use the database."""
        lock = int.from_bytes(self._cipher.name(place)[:8], signed=True)
        # Wait for threads of this process first, so that only one of them needs a connection.
        with super().held(place), self._converted_errors(), self._database.lock(lock):
            yield

    def _create_cipher(self) -> CredentialCipher:
        key = self._configured_key or os.environ.get(KEY_VARIABLE)
        if not key:
            raise CredentialStoreError(
                f"The credential store at {self.place} requires a key. Set {KEY_VARIABLE} to the same key on all "
                "machines; `openssl rand -base64 32` creates one."
            )
        return CredentialCipher(parse_key(key, "`key`" if self._configured_key else KEY_VARIABLE), self.place)
