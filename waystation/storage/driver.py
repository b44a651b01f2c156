"""Storage of large payloads outside the history, based on Temporal's external storage and `Blobs`.

The SDK stores payloads after encoding them with the codec, and retrieves them before decoding them, so the store
contains the same bytes that the server would. A reference includes a short form of the value, the same JSON with its
largest parts cut, so that people can read a history without the store.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import structlog
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.client import Client
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    ExternalStorage,
    FailureConverter,
    SerializationContext,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from waystation.core.contract import Stores
from waystation.core.errors import StoreFailed
from waystation.core.payload import decode, encode
from waystation.project_file import Project
from waystation.storage.blobs import STORE_VARIABLE, BlobMissing, Blobs
from waystation.storage.encryption import UNREADABLE, find_cipher, find_user_keys

if TYPE_CHECKING:
    from waystation.storage.user_keys import UserKeys

log = structlog.get_logger("waystation.storage")

DRIVER = "waystation"
OFFLOAD_OVER = Stores().offload_over
"""Payloads of at least this many bytes are moved to the store. Smaller ones stay in the history. The value is
Temporal's default."""
INLINE_LIMIT = 2_050_000
"""If the store fails, payloads up to this size in bytes are kept in the history, and larger ones raise `StoreFailed`.
The server accepts up to 2 MiB."""
_SDK_DEFAULTS = (
    (DefaultPayloadConverter, DefaultFailureConverter),
    (DefaultPayloadConverter, DefaultFailureConverterWithEncodedAttributes),
)
_REFERENCE_TYPE = ExternalStorageReference.DESCRIPTOR.full_name.encode()
_LEGACY_REFERENCE = b"json/external-storage-reference"
ROOM = 2_000
"""Target size, in bytes, of the short form that replaces a missing payload."""
MAX_BYTES = 4 * ROOM
"""Maximum size of a short form in bytes. A value that cannot be shortened to this size has no short form."""
_LEAST = 64
"""Minimum number of bytes of a short form for each item of a list or object. If there is not enough room for all items,
only the first ones are kept."""
_TEXT = 200
"""Maximum number of characters to keep of a string that is cut, because the Temporal Web UI shows short forms in full.
"""
_SHOWN = 12
"""Number of characters of a digest to show in a short form."""


class BlobDriver(StorageDriver):
    """Stores payloads in `Blobs`."""

    def __init__(self, blobs: Blobs, *, short_forms: bool = False) -> None:
        """Create a driver.

        If `short_forms` is true, a payload that is not available is read as its short form, if it has one. Use this
        only to show data to people, never for agents.
        """
        self.blobs = blobs
        self._short_forms = short_forms
        self._made: tuple[str, str | None] | None = None
        self.shortened: dict[str, str] = {}
        """Digests of the payloads that were read as short forms, each with the reason why the payload is not available.
        """

    def name(self) -> str:
        """Return the driver's name, which is recorded in references."""
        return DRIVER

    def type(self) -> str:
        """Return the driver type."""
        return "waystation.blobs"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Store payloads and return their claims.

        Raises:
            StoreFailed: A payload could not be stored.
        """
        return [await self._claim(payload) for payload in payloads]

    async def _claim(self, payload: Payload) -> StorageDriverClaim:
        data = payload.SerializeToString(deterministic=True)
        digest = await self.blobs.put(data)
        short = self._short_form(payload, digest)
        return StorageDriverClaim({"digest": digest, "size": str(len(data)), **({"short": short} if short else {})})

    def _short_form(self, payload: Payload, digest: str) -> str | None:
        if payload.metadata.get("encoding") != b"json/plain":
            return None
        if self._made is None or self._made[0] != digest:  # a large result is stored twice, see `RECENT_S`
            self._made = digest, short_form(payload.data, digest)
        return self._made[1]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Return the stored payloads.

        A missing or damaged payload is replaced by its short form, if the driver uses them and the payload has one, or
        else by an unreadable payload.

        Anyone can send a reference that cannot be resolved, and raising here would block the workflow that receives it.

        Raises:
            StoreFailed: The store could not be read. The server retries the workflow task.
        """
        return [await self._retrieve(claim.claim_data) for claim in claims]

    async def _retrieve(self, claim: Mapping[str, str]) -> Payload:
        digest = claim.get("digest", "")
        try:
            data = await self.blobs.get(digest)
        except StoreFailed as error:
            if self._short_forms and (short := claim.get("short")):
                self.shortened[digest] = str(error)
                return Payload(metadata={"encoding": b"json/plain"}, data=short.encode())
            if not isinstance(error, BlobMissing):
                remedy = f"It stores large payloads; see --store and {STORE_VARIABLE}."
                raise StoreFailed(error.place, f"{error.problem} {remedy}") from None
            log.warning("payload.missing", place=error.place, problem=error.problem)
            return Payload(metadata=UNREADABLE, data=error.problem.encode())
        try:
            return Payload.FromString(data)
        except DecodeError:  # the bytes are not a payload
            log.warning("payload.unreadable", place=self.blobs.files.place, digest=digest[:12])
            return Payload(metadata=UNREADABLE, data=f"{digest[:12]}… is not a payload.".encode())


class Offload(ExternalStorage):
    """External storage that tolerates invalid references, and keeps payloads inline, up to `INLINE_LIMIT`, if the store
    fails.

    The SDK raises for invalid references and unknown drivers, which would make the server retry the workflow task
    forever. This class returns an unreadable payload instead.
    """

    def _with_store_context(self, ctx: StorageDriverStoreContext) -> "Offload":
        return self  # the digest identifies the content in every context

    async def _store_payload(self, payload: Payload) -> Payload:
        try:
            return await super()._store_payload(payload)
        except StoreFailed as error:
            if (size := payload.ByteSize()) > INLINE_LIMIT:
                text = f"{size:,} bytes could not be stored, and a history accepts {INLINE_LIMIT:,}: {error.problem}"
                raise StoreFailed(error.place, f"{text} See --store and {STORE_VARIABLE}.") from None
            log.warning("payload.kept_inline", place=error.place, problem=error.problem, size=size)
            return payload

    async def _store_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        limit = self.payload_size_threshold
        return [p if p.ByteSize() < limit else await self._store_payload(p) for p in payloads]

    async def _retrieve_payload(self, payload: Payload) -> Payload:
        if not is_reference(payload):
            return payload
        try:
            reference = self._decode_reference(payload)
        except Exception:  # noqa: BLE001  # protobuf raises anything for forged references
            reference = None
        driver = self._driver_map.get(reference.driver_name) if reference else None
        if reference is None or driver is None:
            log.warning("payload.foreign_reference", driver=reference.driver_name[:80] if reference else None)
            return Payload(metadata=UNREADABLE)
        claim = StorageDriverClaim(dict(reference.claim_data))
        return (await driver.retrieve(StorageDriverRetrieveContext(), [claim]))[0]

    async def _retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await self._retrieve_payload(p) if is_reference(p) else p for p in payloads]


@dataclasses.dataclass(frozen=True)
class Offloading(DataConverter):
    """A data converter that is not copied for every payload, unless it has custom parts that may use the context.

    The SDK copies converters to pass the serialization context to their parts. Copying took a tenth of a worker's CPU
    time, and neither `BlobDriver` nor the SDK's default parts use the context.
    """

    @property
    def uses_context(self) -> bool:
        """Whether any part may use the serialization context."""
        parts = self.payload_converter_class, self.failure_converter_class
        return hasattr(self.payload_codec, "with_context") or parts not in _SDK_DEFAULTS

    def with_context(self, context: SerializationContext) -> Self:
        return super().with_context(context) if self.uses_context else self

    def _with_store_context(self, store_ctx: StorageDriverStoreContext) -> "Offloading":
        return self

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        try:
            return await super()._decode_reference_payload_sequence(payloads)
        except Exception:  # noqa: BLE001  # raised for payloads that only claim to be encoded references
            # Anyone can send such a payload, and raising here would block the workflow that receives it.
            log.warning("payload.foreign_reference", driver=None)
            return list(payloads)


def may_have_reference(data: bytes) -> bool:
    """Return whether a serialized message may contain a reference to a stored payload."""
    return _REFERENCE_TYPE in data or _LEGACY_REFERENCE in data


def is_reference(payload: Payload) -> bool:
    """Return whether a payload is a reference to a stored payload."""
    encoding = payload.metadata.get("encoding")
    if encoding == _LEGACY_REFERENCE:
        return True
    return encoding == b"json/protobuf" and payload.metadata.get("messageType") == _REFERENCE_TYPE


def offloading(
    blobs: Blobs,
    *,
    over: int = OFFLOAD_OVER,
    converter: DataConverter = DataConverter.default,
    short_forms: bool = False,
    encrypted: bool = True,
) -> DataConverter:
    """Return a converter that stores payloads of at least `over` bytes in `blobs`, after encoding them with any codec.

    If encryption is switched on, and `converter` has no codec, the result encrypts payloads, and the messages and stack
    traces of failures, unless `encrypted` is false. See `BlobDriver` for `short_forms`.

    Raises:
        InvalidConfiguration: The encryption keys cannot be read.
    """
    converter = encrypting(converter, blobs.project) if encrypted else converter
    storage = Offload(drivers=[BlobDriver(blobs, short_forms=short_forms)], payload_size_threshold=over)
    if type(converter) is not DataConverter:  # a custom class is kept
        return dataclasses.replace(converter, external_storage=storage)
    return Offloading(
        payload_converter_class=converter.payload_converter_class,
        payload_codec=converter.payload_codec,
        failure_converter_class=converter.failure_converter_class,
        external_storage=storage,
    )


def encrypting(converter: DataConverter = DataConverter.default, project: Project | None = None) -> DataConverter:
    """Return a converter that encrypts payloads, and the messages and stack traces of failures.

    Return `converter` itself if it has a codec, or if encryption is switched off.

    Raises:
        InvalidConfiguration: The encryption keys cannot be read.
    """
    if converter.payload_codec is not None or (cipher := find_cipher(project)) is None:
        return converter
    from waystation.storage.encryption_codec import EncryptionCodec, UserEncryptionCodec

    failures: type[FailureConverter] = converter.failure_converter_class
    if failures is DefaultFailureConverter:
        failures = DefaultFailureConverterWithEncodedAttributes
    codec = EncryptionCodec(cipher, is_foreign=is_reference)
    if user_keys := find_user_keys(project):
        codec = UserEncryptionCodec(cipher, user_keys, is_foreign=is_reference)
    return dataclasses.replace(converter, payload_codec=codec, failure_converter_class=failures)


def list_shortened(converter: DataConverter) -> Mapping[str, str]:
    """Return the digests of payloads that this converter read as short forms, each with the reason."""
    driver = _find_driver(converter)
    return driver.shortened if driver else {}


def find_blobs(converter: DataConverter) -> Blobs | None:
    """Return the store of a converter, or None if it has none."""
    driver = _find_driver(converter)
    return driver.blobs if driver else None


def find_user_keys_of(client: Client) -> "UserKeys | None":
    """Return the keys of users that a client encrypts with, or None; see `find_user_keys`."""
    blobs = find_blobs(client.data_converter)
    return find_user_keys(blobs.project if blobs else None)


def _find_driver(converter: DataConverter) -> BlobDriver | None:
    storage = converter.external_storage
    driver = storage.drivers[0] if storage else None
    return driver if isinstance(driver, BlobDriver) else None


def add_storage(client: Client, blobs: Blobs, *, over: int = OFFLOAD_OVER) -> Client:
    """Return a client that uses the same connection and offloads large payloads to `blobs`.

    Return `client` itself if it already offloads payloads.
    """
    if client.data_converter.external_storage is not None:
        return client
    converter = offloading(blobs, over=over, converter=client.data_converter)
    return Client(**(client.config() | {"data_converter": converter}))


def without_storage(client: Client) -> Client:
    """Return a client that uses the same connection but keeps all payloads inline and does not resolve references."""
    converter = dataclasses.replace(client.data_converter, external_storage=None)
    return Client(**(client.config() | {"data_converter": converter}))


async def retrieve_payloads(payloads: Sequence[Payload], converter: DataConverter) -> list[Payload]:
    """Replace references with the stored payloads, without decoding them.

    A reference that cannot be resolved, or any reference if `converter` has no store, becomes an unreadable payload.

    Raises:
        StoreFailed: The store could not be read.
    """
    storage = converter.external_storage
    if not isinstance(storage, Offload):
        nowhere = Payload(metadata=UNREADABLE, data=b"this client has no payload store.")
        return [nowhere if is_reference(p) else p for p in payloads]
    return await storage._retrieve_payload_sequence(payloads)


def short_form(data: bytes, digest: str) -> str | None:
    """Return JSON with its largest parts cut and marked with `digest`, or None if it is not JSON or stays too large."""
    try:
        text = encode(_cut(decode(data), ROOM, len(data), digest))
    except ValueError:
        return None
    return text.decode() if len(text) <= MAX_BYTES else None


def offloaded(size: int, digest: str) -> str:
    """Return the note that a short form contains in place of offloaded bytes."""
    amount = f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{size / 1_000:.1f} kB"
    return f"[offloaded: {amount}, sha256 {digest[:_SHOWN]}…]"


def _cut(value: Any, room: int, size: int, digest: str) -> Any:
    """Cut a value, which is part of a payload of `size` bytes, to about `room` bytes. Read only the parts to keep."""
    if _size(value, room) <= room:
        return value
    match value:
        case str():
            # The note comes first because viewers clip long strings.
            note = offloaded(len(value.encode()), digest)
            begins = value[: min(max(room - len(note) - 2, 0), _TEXT)]
            return f"{note} {begins}…" if begins else note
        case dict():
            named = list(itertools.islice(value.items(), max(room // _LEAST, 1)))
            rooms = _share_room([_size(item, room) for _, item in named], room - sum(len(key) + 4 for key, _ in named))
            fields = {key: _cut(item, share, size, digest) for (key, item), share in zip(named, rooms, strict=True)}
            omitted = len(value) - len(fields)
            return {**fields, "…": f"{omitted:,} more {offloaded(size, digest)}"} if omitted else fields
        case list():
            first = value[: max(room // _LEAST, 1)]
            rooms = _share_room([_size(item, room) + 1 for item in first], room)
            items = [_cut(item, share, size, digest) for item, share in zip(first, rooms, strict=True)]
            omitted = len(value) - len(items)
            more = f"{omitted:,} more {offloaded(size, digest)}"
            return [*items, {"…": more} if isinstance(value[0], dict) else more] if omitted else items
        case _:
            return value


def _size(value: Any, most: int) -> int:
    """Return the approximate JSON size of a value in bytes. If it exceeds `most`, the result may be too small, but it
    still exceeds `most`.
    """
    match value:
        case str():
            return len(value) if len(value) > most else len(value.encode()) + 2
        case dict() | list():
            size = 2
            for item in value.items() if isinstance(value, dict) else value:
                size += len(item[0]) + 4 + _size(item[1], most) if isinstance(value, dict) else 1 + _size(item, most)
                if size > most:
                    break
            return size
        case _:
            return len(encode(value))


def _share_room(sizes: list[int], room: int) -> list[int]:
    """Divide `room` bytes among parts. Small parts get all they need, and large ones get equal shares of the rest."""
    rooms = [0] * len(sizes)
    for remaining_parts, index in zip(
        range(len(sizes), 0, -1), sorted(range(len(sizes)), key=sizes.__getitem__), strict=True
    ):
        rooms[index] = min(sizes[index], max(room, 0) // remaining_parts)
        room -= rooms[index]
    return rooms
