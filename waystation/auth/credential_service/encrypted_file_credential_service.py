"""A credential store in an encrypted SQLite file."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waystation.auth.credential_service.credential_cipher import KEY_BYTES, KEY_VARIABLE, CredentialCipher, parse_key
from waystation.auth.credential_service.table_credential_store import TableCredentialStore
from waystation.auth.credential_store import LOCK_LIMIT_S, Place
from waystation.core.errors import CredentialStoreError
from waystation.private_files import create_file
from waystation.storage import SqlTable

_POLL_S = 0.01
_SCHEMA = "CREATE TABLE IF NOT EXISTS entries (place BLOB PRIMARY KEY, value BLOB NOT NULL, until REAL) WITHOUT ROWID"
_SLOTS = 16
"""The maximum number of lock files. Places that share a lock file wait for each other."""


class EncryptedFileCredentialService(TableCredentialStore):
    """Keeps credentials in a file that all processes on one machine can share.

    The file is an SQLite database, which is created on first use. Values are encrypted with AES-256-GCM and names are
    keyed digests, so the file reveals only the number, sizes and expiry times of its entries.
    """

    def __init__(self, path: str | Path, *, key: str | bytes | None = None) -> None:
        """Set the file and its key. Nothing is opened or created yet.

        Args:
            path: The path of the database file.
            key: A key of 32 bytes, raw or in base64. By default, it is read from the environment variable
                `WAYSTATION_CREDENTIAL_KEY` or else from the file `<path>.key`, which is created if missing and is
                readable only by its owner.
        """
        self.path = Path(path)
        super().__init__(SqlTable.at(path, "entries", [_SCHEMA]), "entries")
        self._configured_key = key

    @property
    def key_path(self) -> Path:
        """The file that contains the key, unless the key is passed or is in the environment."""
        return self.path.with_name(f"{self.path.name}.key")

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Lock a place during a `with` block, for all threads and processes on this machine."""
        from filelock import FileLock, Timeout

        file = self.path.with_name(f"{self.path.name}.lock-{self._cipher.name(place)[0] % _SLOTS:x}")
        try:
            # The operating system releases the lock if the process dies, but not if it is frozen.
            lock = FileLock(file, mode=0o600, poll_interval=_POLL_S).acquire(timeout=LOCK_LIMIT_S)
        except Timeout:
            raise CredentialStoreError(
                f"Another process has held the lock {str(file)!r} for {LOCK_LIMIT_S:g} s. If it is frozen, end it."
            ) from None
        with lock:
            yield

    def _create_cipher(self) -> CredentialCipher:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return CredentialCipher(self._key(), repr(str(self.path)))
        except OSError as error:
            raise CredentialStoreError(
                f"The credential store {str(self.path)!r} cannot be created: {error.strerror}. Choose another with "
                "--credentials."
            ) from None

    def _key(self) -> bytes:
        key = self._configured_key or os.environ.get(KEY_VARIABLE)
        if key is not None:
            return parse_key(key, "`key`" if self._configured_key else KEY_VARIABLE)
        if not self.key_path.exists():
            with suppress(FileExistsError):  # another process has just created it
                create_file(self.key_path, base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
        mode = self.key_path.stat().st_mode
        if os.name == "posix" and mode & 0o077:
            raise CredentialStoreError(
                f"{str(self.key_path)!r} can be read by other users (mode {mode & 0o777:o}). Run chmod 600 on it."
            )
        return parse_key(self.key_path.read_bytes(), repr(str(self.key_path)))
