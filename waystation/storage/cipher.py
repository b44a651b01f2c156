"""Encryption with AES-256-GCM, and keyed digests of words."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress

from waystation.core.errors import InvalidConfiguration
from waystation.key_set import EncryptionKeys

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    remedy = "Install it with: pip install 'waystation[encryption]'"
    raise InvalidConfiguration(EncryptionKeys.variable, "", f"needs the extra `encryption`. {remedy}") from None

NONCE_BYTES = 12


class Cipher:
    """Encrypts with the first key, and decrypts with all keys.

    If the ID of a key is unknown, the keys are read again, so that a running process finds a new key in its file.
    """

    def __init__(self, source: str) -> None:
        """Read the keys from a file, or from an environment variable if `source` is `env:NAME`.

        Raises:
            InvalidConfiguration: The keys cannot be read.
        """
        self._source = source
        self._use(EncryptionKeys.read(source))

    def _use(self, keys: EncryptionKeys) -> None:
        self._content = {id: AESGCM(key) for id, key in keys.derive(b"content").items()}
        self._words = list(keys.derive(b"words").values())
        self.key_id = next(iter(self._content))
        """ID of the key that encrypts."""

    def encrypt(self, data: bytes, bound_to: bytes = b"") -> bytes:
        """Return data encrypted with the first key. It can only be decrypted with the same `bound_to`."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._content[self.key_id].encrypt(nonce, data, bound_to)

    def decrypt(self, key_id: bytes, data: bytes, bound_to: bytes = b"") -> bytes | None:
        """Return decrypted data, or None if there is no key with this ID.

        Raises:
            ValueError: The data is damaged, or was encrypted with another `bound_to`.
        """
        if key_id not in self._content:
            with suppress(InvalidConfiguration):  # the keys that were read before stay valid
                self._use(EncryptionKeys.read(self._source))
        if (key := self._content.get(key_id)) is None:
            return None
        try:
            return key.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):  # a ValueError if the nonce is too short
            text = f"it is damaged, or was not encrypted with the key {key_id[:80].decode(errors='replace')!r}."
            raise ValueError(text) from None

    def digest_words(self, owner: str, phrases: Sequence[Sequence[str]]) -> list[list[list[str]]]:
        """Return keyed digests of the words in phrases, for a search index: one list of phrases for each key."""
        return [
            [
                [hmac.digest(key, f"{owner}\0{word}".encode(), "sha256").hex()[:20] for word in words]
                for words in phrases
            ]
            for key in self._words
        ]
