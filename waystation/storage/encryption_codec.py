"""The payload codec that encrypts payloads."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Self

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
)

from waystation.storage.cipher import Cipher
from waystation.storage.encryption import DELETED, ENCRYPTED, KEY_ID, UNREADABLE, USER_KEY
from waystation.storage.owners import KeyDeleted, Owner
from waystation.storage.store_retries import try_again
from waystation.storage.user_keys import UserKeys

_RETRY_S = 15.0
"""How long to repeat attempts, in seconds, if the store of user keys is away while an activity starts or reports.
Otherwise, a call that may run only once would fail without having run, or its result would be lost."""
_REPEATED_BYTES = 100_000
"""If the codec encodes a payload of at least this many bytes twice in a row, it returns the same bytes. A worker
encodes a large result to check that the store accepts it, and again to return it. The store should contain it once."""


class EncryptionCodec(PayloadCodec):
    """Encrypts payloads.

    Decoding never fails, because anyone who can signal a workflow could otherwise block it. A payload whose key is
    missing stays encrypted, and a damaged one becomes unreadable. Payloads that are not encrypted are left as they are.
    """

    def __init__(self, cipher: Cipher, *, is_foreign: Callable[[Payload], bool]) -> None:
        """Create a codec. Decrypted payloads for which `is_foreign` returns true are unreadable.

        These are references to stored payloads. They are followed before payloads are decrypted, so workers never
        encrypt them.
        """
        self._cipher, self._is_foreign = cipher, is_foreign
        self._repeated: list[tuple[bytes, bytes, Payload]] = []
        """The ID of the key, the data and the result of the latest large payload."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return encrypted payloads."""
        return self._encode_all(payloads)

    def _encode_all(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encode(payload) for payload in payloads]

    def _encode(self, payload: Payload) -> Payload:
        data, key_id = payload.SerializeToString(), self._get_key_id()
        for repeated_id, repeated_data, repeated in self._repeated:
            if (repeated_id, repeated_data) == (key_id, data):
                return repeated
        key_id, content = self._encrypt(data)
        encrypted = Payload(metadata={"encoding": ENCRYPTED, KEY_ID: key_id}, data=content)
        if len(data) >= _REPEATED_BYTES:
            self._repeated[:] = [(key_id, data, encrypted)]
        return encrypted

    def _get_key_id(self) -> bytes:
        return self._cipher.key_id

    def _encrypt(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the ID of the key, and the encrypted data."""
        return self._cipher.key_id, self._cipher.encrypt(data)

    def _decrypt(self, key_id: bytes, data: bytes) -> bytes | None:
        return self._cipher.decrypt(key_id, data)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads, decrypted if possible."""
        return self._decode_all(payloads)

    def _decode_all(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decode(p) if p.metadata.get("encoding") == ENCRYPTED else p for p in payloads]

    def _decode(self, payload: Payload) -> Payload:
        try:
            data = self._decrypt(payload.metadata.get(KEY_ID, b""), payload.data)
            decrypted = payload if data is None else Payload.FromString(data)
            return Payload(metadata=UNREADABLE) if self._is_foreign(decrypted) else decrypted
        except KeyDeleted:
            return Payload(metadata=DELETED)
        except (ValueError, DecodeError) as error:
            return Payload(metadata=UNREADABLE, data=str(error).encode())


class UserEncryptionCodec(EncryptionCodec, WithSerializationContext):
    """Encrypts the payloads of a workflow whose ID contains a user with the key of this user.

    Unlike its base class, it raises StoreFailed if the store of user keys is not available. A workflow task or activity
    is then retried.
    """

    def __init__(self, cipher: Cipher, user_keys: UserKeys, *, is_foreign: Callable[[Payload], bool]) -> None:
        super().__init__(cipher, is_foreign=is_foreign)
        self._user_keys = user_keys
        self._owner: Owner | None = None
        self._retry_s = 0.0

    def with_context(self, context: SerializationContext) -> Self:
        """Return a codec for the payloads of one workflow."""
        owner = Owner.of_workflow(getattr(context, "workflow_id", None) or "")
        retry_s = _RETRY_S if isinstance(context, ActivitySerializationContext) else 0.0
        if (owner, retry_s) == (self._owner, self._retry_s):
            return self
        codec = copy.copy(self)  # shares the latest large payload
        codec._owner, codec._retry_s = owner, retry_s
        return codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return encrypted payloads."""
        if payloads and self._user_keys.needs_store(self._owner, []):
            return await try_again(lambda: asyncio.to_thread(self._encode_all, payloads), self._retry_s)
        return self._encode_all(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads, decrypted if possible."""
        ids = [payload.metadata.get(KEY_ID, b"") for payload in payloads]
        if self._user_keys.needs_store(None, [id for id in ids if id.startswith(USER_KEY)]):
            return await try_again(lambda: asyncio.to_thread(self._decode_all, payloads), self._retry_s)
        return self._decode_all(payloads)

    def _get_key_id(self) -> bytes:
        return self._user_keys.get_current_id(self._owner) if self._owner else super()._get_key_id()

    def _encrypt(self, data: bytes) -> tuple[bytes, bytes]:
        return self._user_keys.encrypt(self._owner, data) if self._owner else super()._encrypt(data)

    def _decrypt(self, key_id: bytes, data: bytes) -> bytes | None:
        return (self._user_keys if key_id.startswith(USER_KEY) else self._cipher).decrypt(key_id, data)
