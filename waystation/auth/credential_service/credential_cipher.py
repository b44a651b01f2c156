"""The encryption of the entries of a credential store."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import secrets
from typing import TYPE_CHECKING

from waystation.core.errors import CredentialStoreError

if TYPE_CHECKING:
    from waystation.auth.credential_store import Place

KEY_VARIABLE = "WAYSTATION_CREDENTIAL_KEY"
KEY_BYTES = 32
_CHECK: Place = ("check",)


class CredentialCipher:
    """Encrypts values with AES-256-GCM and replaces names by keyed digests."""

    def __init__(self, key: bytes, store: str) -> None:
        """Derive the keys. `store` names the store in errors.

        Raises:
            CredentialStoreError: The extra `auth` is not installed.
        """
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise CredentialStoreError(
                "Storing encrypted credentials requires the extra `auth`: pip install 'waystation[auth]'."
            ) from None
        self._names, self._values = _derive_key(key, b"names"), AESGCM(_derive_key(key, b"values"))
        self._store = store

    @property
    def check(self) -> tuple[bytes, bytes]:
        """The entry that every store contains. It shows whether the store was written with this key."""
        name = self.name(_CHECK)
        return name, self.encrypt(name, "")

    def name(self, place: Place) -> bytes:
        """Return the keyed digest under which the value of a place is stored."""
        return hmac.digest(self._names, json.dumps(place).encode(), hashlib.sha256)

    def encrypt(self, name: bytes, text: str) -> bytes:
        """Return the value to store under a name."""
        nonce = secrets.token_bytes(12)
        # Authenticate the name too, so that values cannot be swapped between entries.
        return nonce + self._values.encrypt(nonce, text.encode(), name)

    def decrypt(self, name: bytes, value: bytes) -> str:
        """Return the text of a stored value.

        Raises:
            CredentialStoreError: The value is damaged, or belongs to another name.
        """
        from cryptography.exceptions import InvalidTag

        try:
            return self._values.decrypt(value[:12], value[12:], name).decode()
        except InvalidTag:
            raise CredentialStoreError(
                f"An entry in {self._store} is damaged. Delete the credentials. Users will then have to log in again."
            ) from None


def _derive_key(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"waystation credentials: " + purpose, hashlib.sha256)


def parse_key(key: str | bytes, source: str) -> bytes:
    """Return the bytes of a key, which may be encoded in base64. `source` names the origin of the key in errors.

    Raises:
        CredentialStoreError: The key does not have `KEY_BYTES` bytes.
    """
    data = key.encode() if isinstance(key, str) else key
    if len(data) == KEY_BYTES:
        return data
    with contextlib.suppress(binascii.Error):
        decoded = base64.urlsafe_b64decode(data.strip())
        if len(decoded) == KEY_BYTES:
            return decoded
    raise CredentialStoreError(
        f"{source} is not a valid key. Use {KEY_BYTES} bytes in base64, from `openssl rand -base64 {KEY_BYTES}`."
    )
