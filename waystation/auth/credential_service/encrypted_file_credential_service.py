"""A credential store in an encrypted SQLite file."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from waystation.auth.credential_service.credential_cipher import KEY_BYTES, KEY_VARIABLE, CredentialCipher, parse_key
from waystation.auth.credential_store import LOCK_LIMIT_S, CredentialStore, Place
from waystation.core import CredentialStoreError
from waystation.storage import read_sqlite_id

_BUSY_S = 15.0
_POLL_S = 0.01
_SCHEMA = "CREATE TABLE IF NOT EXISTS entries (place BLOB PRIMARY KEY, value BLOB NOT NULL, until REAL) WITHOUT ROWID"
_SLOTS = 16
"""The maximum number of lock files. Places that share a lock file wait for each other."""


class EncryptedFileCredentialService(CredentialStore):
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
        self._configured_key = key

    @property
    def key_path(self) -> Path:
        """The file that contains the key, unless the key is passed or is in the environment."""
        return self.path.with_name(f"{self.path.name}.key")

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place, or None if there is none or it has expired."""
        name = self._cipher.name(place)
        with self._connection() as connection:
            row = connection.execute("SELECT value, until FROM entries WHERE place = ?", (name,)).fetchone()
        if row is None or (row[1] is not None and row[1] <= time.time()):
            return None
        return self._cipher.decrypt(name, row[0])

    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Store a value for `keep_s` seconds, by default forever, or remove it if `text` is None. This is atomic."""
        name, now = self._cipher.name(place), time.time()
        with self._connection() as connection, connection:
            connection.execute("DELETE FROM entries WHERE place = ? OR until <= ?", (name, now))
            if text is not None:
                until = None if keep_s is None else now + keep_s
                value = self._cipher.encrypt(name, text)
                connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (name, value, until))

    async def store_id(self) -> str | None:
        """Return the ID of the file, or "" if it does not exist yet."""
        if not self.path.exists():
            return ""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                return read_sqlite_id(connection)

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

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # Open a new connection for each use. This takes 0.1 ms and is safe with threads and forks.
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                yield connection
        except sqlite3.Error as error:
            raise CredentialStoreError(f"The credential store {str(self.path)!r} cannot be used: {error}.") from None

    @cached_property
    def _cipher(self) -> CredentialCipher:
        """The cipher. The first use creates the file if necessary and checks that it was written with its key.

        Threads and processes may do this at the same time.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = self._key()
            # Create the file here, because SQLite would make it readable for all users. The journal files that SQLite
            # creates next to it get the same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise CredentialStoreError(
                f"The credential store {str(self.path)!r} cannot be created: {error.strerror}. Choose another with "
                "--credentials."
            ) from None
        cipher = CredentialCipher(key, repr(str(self.path)))
        name, value = cipher.check
        with self._connection() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            present = connection.execute("SELECT COUNT(*), SUM(place = ?) FROM entries", (name,)).fetchone()
            if present[0] and not present[1]:
                raise CredentialStoreError(
                    f"{str(self.path)!r} was written with a different key. Provide that key in {KEY_VARIABLE} or "
                    f"{str(self.key_path)!r}, or delete the file. Users will then have to log in again."
                )
            connection.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, NULL)", (name, value))
        return cipher

    def _key(self) -> bytes:
        key = self._configured_key or os.environ.get(KEY_VARIABLE)
        if key is not None:
            return parse_key(key, "`key`" if self._configured_key else KEY_VARIABLE)
        with contextlib.suppress(FileExistsError):
            self._create_key()
        mode = self.key_path.stat().st_mode
        if os.name == "posix" and mode & 0o077:
            raise CredentialStoreError(
                f"{str(self.key_path)!r} can be read by other users (mode {mode & 0o777:o}). Run chmod 600 on it."
            )
        return parse_key(self.key_path.read_bytes(), repr(str(self.key_path)))

    def _create_key(self) -> None:
        """Create the key file atomically, unless another process has already created it."""
        if self.key_path.exists():
            return
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.key_path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
            os.link(temporary, self.key_path)
        finally:
            os.unlink(temporary)
