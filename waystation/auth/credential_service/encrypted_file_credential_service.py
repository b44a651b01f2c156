"""Where credentials are kept: in memory, in an encrypted file, or in the keyring of the operating system."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from waystation.auth.credential_store import CredentialStore, Place
from waystation.core import CredentialStoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_VARIABLE = "WAYSTATION_CREDENTIAL_KEY"
KEY_BYTES = 32
_BUSY_S = 15.0
_POLL_S = 0.01
_SCHEMA = "CREATE TABLE IF NOT EXISTS entries (place BLOB PRIMARY KEY, value BLOB NOT NULL, until REAL) WITHOUT ROWID"
_SLOTS = 16
"""How many lock files there are at most; places that share one wait for each other now and then."""
_CHECK: Place = ("check",)


class _Keys(NamedTuple):
    """What is derived from the key: one for names, one for values."""

    names: bytes
    values: AESGCM


class EncryptedFileCredentialService(CredentialStore):
    """Keeps credentials in a file, for all processes of one machine.

    The file is an SQLite database whose values are encrypted (AES-256-GCM) and whose names are keyed digests, so that
    it tells nothing but how many entries it has. It is made when it is first used.
    """

    def __init__(self, path: str | Path, *, key: str | bytes | None = None) -> None:
        """`key` is 32 bytes, raw or in base64. By default it is that of `WAYSTATION_CREDENTIAL_KEY`, or else it stands
        in the file `<path>.key`, which is made, readable only by its owner."""
        self.path = Path(path)
        self._given = key

    @property
    def key_path(self) -> Path:
        """Where the key is when it is neither given nor in the environment."""
        return self.path.with_name(f"{self.path.name}.key")

    def read(self, place: Place) -> str | None:
        """Return what was written there and has not expired."""
        keys = self._keys
        name = _name(keys, place)
        with self._connection() as connection:
            row = connection.execute("SELECT value, until FROM entries WHERE place = ?", (name,)).fetchone()
        if row is None or (row[1] is not None and row[1] <= time.time()):
            return None
        return self._decrypted(keys, name, row[0])

    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Write a text, whole or not at all; None removes what is there."""
        keys = self._keys
        name, now = _name(keys, place), time.time()
        with self._connection() as connection, connection:
            connection.execute("DELETE FROM entries WHERE place = ? OR until <= ?", (name, now))
            if text is not None:
                until = None if keep_s is None else now + keep_s
                connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (name, _encrypted(keys, name, text), until))

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Keep all others who want to hold the place waiting, in every process of this machine."""
        from filelock import FileLock

        slot = _name(self._keys, place)[0] % _SLOTS
        # The system's own, so that a process that dies keeps nobody waiting.
        with FileLock(self.path.with_name(f"{self.path.name}.lock-{slot:x}"), mode=0o600, poll_interval=_POLL_S):
            yield

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # One for each use: it costs a tenth of a millisecond, and threads and forks need no thought.
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                yield connection
        except sqlite3.Error as error:
            raise CredentialStoreError(f"The credential store {str(self.path)!r} cannot be used: {error}.") from None

    @cached_property
    def _keys(self) -> _Keys:
        """Make the file unless it is there, and the keys; check that they belong together.

        Threads may do it at the same time, as processes do.
        """
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise CredentialStoreError(
                "Keeping credentials in a file needs the extra `auth`: pip install 'waystation[auth]'."
            ) from None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = self._key()
            # Before SQLite makes it readable for everybody; what SQLite puts beside it gets the same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise CredentialStoreError(
                f"The credential store {str(self.path)!r} cannot be made: {error.strerror}. Name another with "
                "--credentials."
            ) from None
        keys = _Keys(_derived(key, b"names"), AESGCM(_derived(key, b"values")))
        check = _name(keys, _CHECK)
        with self._connection() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            present = connection.execute("SELECT COUNT(*), SUM(place = ?) FROM entries", (check,)).fetchone()
            if present[0] and not present[1]:
                raise CredentialStoreError(
                    f"{str(self.path)!r} was written with another key. Give that one, in {KEY_VARIABLE} or "
                    f"{str(self.key_path)!r}; or remove the file, and users are asked again."
                )
            connection.execute(
                "INSERT OR IGNORE INTO entries VALUES (?, ?, NULL)", (check, _encrypted(keys, check, ""))
            )
        return keys

    def _key(self) -> bytes:
        given = self._given or os.environ.get(KEY_VARIABLE)
        if given is not None:
            return _parsed(given, "`key`" if self._given else KEY_VARIABLE)
        with contextlib.suppress(FileExistsError):
            self._make_key()
        mode = self.key_path.stat().st_mode
        if os.name == "posix" and mode & 0o077:
            raise CredentialStoreError(
                f"{str(self.key_path)!r} can be read by others (mode {mode & 0o777:o}); run chmod 600 on it."
            )
        return _parsed(self.key_path.read_bytes(), repr(str(self.key_path)))

    def _make_key(self) -> None:
        """Make the key file, whole at once, unless another process is first."""
        if self.key_path.exists():
            return
        handle, made = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.key_path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
            os.link(made, self.key_path)
        finally:
            os.unlink(made)

    def _decrypted(self, keys: _Keys, name: bytes, value: bytes) -> str:
        from cryptography.exceptions import InvalidTag

        try:
            return keys.values.decrypt(value[:12], value[12:], name).decode()
        except InvalidTag:
            raise CredentialStoreError(
                f"An entry of {str(self.path)!r} is damaged; remove the file, and users are asked again."
            ) from None


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"waystation credentials: " + purpose, hashlib.sha256)


def _name(keys: _Keys, place: Place) -> bytes:
    return hmac.digest(keys.names, json.dumps(place).encode(), hashlib.sha256)


def _encrypted(keys: _Keys, name: bytes, text: str) -> bytes:
    nonce = secrets.token_bytes(12)
    # The name is authenticated too, so that entries cannot be exchanged.
    return nonce + keys.values.encrypt(nonce, text.encode(), name)


def _parsed(key: str | bytes, source: str) -> bytes:
    data = key.encode() if isinstance(key, str) else key
    if len(data) == KEY_BYTES:
        return data
    with contextlib.suppress(binascii.Error):
        decoded = base64.urlsafe_b64decode(data.strip())
        if len(decoded) == KEY_BYTES:
            return decoded
    raise CredentialStoreError(
        f"{source} is no key: it takes {KEY_BYTES} bytes in base64, as from `openssl rand -base64 {KEY_BYTES}`."
    )
