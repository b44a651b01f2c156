"""The switch for encryption, and the formats of encrypted data.

While `WAYSTATION_ENCRYPTION_KEYS` is not set, nothing is encrypted, and `cryptography` is not imported. Data that was
written while encryption was switched off stays readable.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from waystation.core.errors import InvalidConfiguration
from waystation.project_file import Project, find_setting
from waystation.storage.owners import Owner, describe_deleted_key

if TYPE_CHECKING:
    from temporalio.api.common.v1 import Payload

    from waystation.storage.cipher import Cipher
    from waystation.storage.user_keys import UserKeys

ENCRYPTION_VARIABLE = "WAYSTATION_ENCRYPTION_KEYS"
"""Environment variable with the path of the key file, or with `env:NAME` for a variable that has its content. A project
file can set it, too."""
USER_KEYS_VARIABLE = "WAYSTATION_USER_KEYS"
"""Environment variable with the SQLite file or the PostgreSQL URL of the keys of single users. Without it, the first
key in the key file encrypts the data of all users."""
ENCRYPTED = b"binary/encrypted"
"""The encoding of an encrypted payload, as in Temporal's examples. A reader without the key leaves it encrypted."""
UNREADABLE = {"encoding": b"waystation/unreadable"}
"""Metadata of a payload that replaces one that cannot be read. The encoding keeps readers from parsing it as JSON."""
DELETED = {"encoding": b"waystation/deleted"}
"""Metadata of a payload that replaces one whose key was deleted with the data of its user."""
USER_KEY = b"user-"
"""The beginning of the ID of a user's key."""
KEY_ID = "encryption-key-id"
"""The metadata of an encrypted payload that has the ID of its key."""
_FILE_MARK = b"\0waystation-encrypted\0"
"""The first bytes of an encrypted file. The ID of the key follows, then a null byte and the encrypted content."""


def find_cipher(project: Project | None = None) -> Cipher | None:
    """Return the cipher with the configured keys, or None if encryption is switched off.

    Raises:
        InvalidConfiguration: The keys cannot be read, the extra `encryption` is not installed, or there is a store of
            user keys but no keys to wrap them.
    """
    source = find_setting(ENCRYPTION_VARIABLE, project)
    if not source and find_setting(USER_KEYS_VARIABLE, project):
        raise InvalidConfiguration(USER_KEYS_VARIABLE, "", f"requires {ENCRYPTION_VARIABLE}. Set it, too")
    return _read_cipher(source) if source else None


@functools.cache
def _read_cipher(source: str) -> Cipher:
    from waystation.storage.cipher import Cipher

    return Cipher(source)


def find_user_keys(project: Project | None = None) -> UserKeys | None:
    """Return the keys of users, or None if encryption is switched off or no store of user keys is configured.

    Raises:
        InvalidConfiguration: The encryption keys cannot be read, or the extra `encryption` is not installed.
        StoreFailed: The URL of the store is not valid, or the extra `postgres` is not installed.
    """
    source, place = find_setting(ENCRYPTION_VARIABLE, project), find_setting(USER_KEYS_VARIABLE, project)
    return _open_user_keys(source, place) if source and place else None


@functools.cache
def _open_user_keys(source: str, place: str) -> UserKeys:
    from waystation.storage.user_keys import UserKeys

    return UserKeys(place, _read_cipher(source))


def is_deleted(payload: Payload) -> bool:
    """Return whether a payload replaces one whose key was deleted."""
    return payload.metadata.get("encoding") == DELETED["encoding"]


def describe_missing_key(payload: Payload) -> str | None:
    """Return why a payload is still encrypted or was deleted, or None if it is neither or does not name its key."""
    if is_deleted(payload):
        return describe_deleted_key()
    key_id = payload.metadata.get(KEY_ID)
    return _describe_key(key_id) if key_id and payload.metadata.get("encoding") == ENCRYPTED else None


def _describe_key(key_id: bytes) -> str:
    if key_id.startswith(USER_KEY):
        remedy = f"Set {USER_KEYS_VARIABLE} to the workers' store of user keys."
        return f"it is encrypted with the user key {key_id[:80].decode(errors='replace')!r}, which is missing. {remedy}"
    remedy = f"Add this key to the file that {ENCRYPTION_VARIABLE} names, and restart this process."
    return f"it is encrypted with the key {key_id[:80].decode(errors='replace')!r}, which is not available. {remedy}"


def encrypt_file(path: str, data: bytes, owner: Owner | None = None, project: Project | None = None) -> bytes:
    """Return the content to write to a file. It cannot be decrypted under another path.

    If the data has an owner and there is a store of user keys, the content is encrypted with the owner's key.

    Raises:
        StoreFailed: The store of user keys is not available.
    """
    if (cipher := find_cipher(project)) is None:
        return data
    if owner and (user_keys := find_user_keys(project)):
        return b"%b%b\0%b" % (_FILE_MARK, *user_keys.encrypt(owner, data, path.encode()))
    return b"%b%b\0%b" % (_FILE_MARK, cipher.key_id, cipher.encrypt(data, path.encode()))


def is_encrypted_file(data: bytes) -> bool:
    """Return whether `encrypt_file` encrypted the content of a file."""
    return data.startswith(_FILE_MARK)


def decrypt_file(path: str, data: bytes, project: Project | None = None) -> bytes:
    """Return the decrypted content of a file, or the unchanged content of a file that is not encrypted.

    Raises:
        ValueError: The content is damaged, or its key is missing or was deleted.
        StoreFailed: The store of user keys is not available.
    """
    if not is_encrypted_file(data):
        return data
    key_id, _, content = data.removeprefix(_FILE_MARK).partition(b"\0")
    keys = find_user_keys(project) if key_id.startswith(USER_KEY) else find_cipher(project)
    decrypted = None if keys is None else keys.decrypt(key_id, content, path.encode())
    if decrypted is None:
        raise ValueError(_describe_key(key_id))
    return decrypted
