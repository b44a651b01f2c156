"""Large payloads beside the history: Temporal's external storage over `Blobs`.

The SDK stores after a codec has encoded and retrieves before it decodes, so the store sees what the server would.
A reference holds a short form of the value: the same JSON with its largest parts cut. So people can read a history
where the store is not at hand.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import structlog
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.client import Client
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    ExternalStorage,
    SerializationContext,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from waystation.core import StoreFailed, Stores, decode, encode
from waystation.storage.blobs import STORE_VARIABLE, BlobMissing, Blobs

log = structlog.get_logger("waystation.storage")

DRIVER = "waystation"
OFFLOAD_OVER = Stores().offload_over
"""In bytes; payloads below it stay in the history. Temporal's own default."""
INLINE_LIMIT = 2_050_000
"""What goes into the history all the same when the store fails; the server takes 2 MiB."""
UNREADABLE = {"encoding": b"waystation/unreadable"}
"""Metadata of what stands for a reference that leads nowhere. No reader takes it for JSON."""
_SDKS_OWN = (DefaultPayloadConverter, None, DefaultFailureConverter)
_REFERENCE_TYPE = ExternalStorageReference.DESCRIPTOR.full_name.encode()
_LEGACY_REFERENCE = b"json/external-storage-reference"
ROOM = 2_000
"""About how many bytes a short form has."""
MAX_BYTES = 4 * ROOM
"""A value that does not become as short as this has no short form."""
_LEAST = 64
"""Bytes that a part is worth; of a value with more parts than fit, the first are kept."""
_TEXT = 200
"""Characters of a long text that stay at most: the Web UI shows all of a short form."""
_SHOWN = 12
"""Characters of a digest that tell blobs apart."""


class BlobDriver(StorageDriver):
    """Keeps payloads in `Blobs`."""

    def __init__(self, blobs: Blobs, *, short_forms: bool = False) -> None:
        """With `short_forms` what cannot be had is read as its short form: good for people, never for an agent."""
        self.blobs = blobs
        self._short_forms = short_forms
        self._made: tuple[str, str | None] | None = None
        self.shortened: dict[str, str] = {}
        """Digests of what was read so, each with the reason."""

    def name(self) -> str:
        """Return the name in every reference."""
        return DRIVER

    def type(self) -> str:
        """Return the name of this kind of driver."""
        return "waystation.blobs"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Keep payloads.

        Raises:
            StoreFailed: The store does not take them.
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
        if self._made is None or self._made[0] != digest:  # a large result is put twice, see `Blobs.put`
            self._made = digest, short_form(payload.data, digest)
        return self._made[1]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Return payloads; for each that is not there one that nobody can read.

        Anybody can send a reference that leads nowhere, and raising here would stick the workflow that got it.

        Raises:
            StoreFailed: The store does not answer; the server has the workflow task repeated until it does.
        """
        return [await self._found(claim.claim_data) for claim in claims]

    async def _found(self, claim: Mapping[str, str]) -> Payload:
        digest = claim.get("digest", "")
        try:
            data = await self.blobs.get(digest)
        except StoreFailed as error:
            if self._short_forms and (short := claim.get("short")):
                self.shortened[digest] = str(error)
                return Payload(metadata={"encoding": b"json/plain"}, data=short.encode())
            if not isinstance(error, BlobMissing):
                remedy = f"It keeps large payloads; see --store and {STORE_VARIABLE}."
                raise StoreFailed(error.place, f"{error.problem} {remedy}") from None
            log.warning("payload.missing", place=error.place, problem=error.problem)
            return Payload(metadata=UNREADABLE, data=error.problem.encode())
        try:
            return Payload.FromString(data)
        except DecodeError:  # bytes of another kind
            log.warning("payload.unreadable", place=self.blobs.files.place, digest=digest[:12])
            return Payload(metadata=UNREADABLE, data=f"{digest[:12]}… is no payload.".encode())


class Offload(ExternalStorage):
    """External storage that no message from outside can bring to raise, and that does without while it can.

    Overrides what the SDK calls per payload, because it raises there for references that are no references, or that
    name a driver that is not there, and then repeats the workflow task for ever.
    """

    def _with_store_context(self, ctx: StorageDriverStoreContext) -> "Offload":
        return self  # content is found by its digest, whosever it is

    async def _store_payload(self, payload: Payload) -> Payload:
        try:
            return await super()._store_payload(payload)
        except StoreFailed as error:
            if (size := payload.ByteSize()) > INLINE_LIMIT:
                text = f"It was to keep {size:,} bytes, of which a history takes {INLINE_LIMIT:,}: {error.problem}"
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
        except Exception:  # noqa: BLE001  # whatever a forged reference makes the protobuf reader raise
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
    """A converter that is not copied for every payload of every task, as the SDK does to tell its parts whose it is.

    That was a tenth of a worker's CPU time, and neither `BlobDriver` nor the SDK's own parts ask.
    """

    def with_context(self, context: SerializationContext) -> Self:
        parts = self.payload_converter_class, self.payload_codec, self.failure_converter_class
        return self if parts == _SDKS_OWN else super().with_context(context)

    def _with_store_context(self, store_ctx: StorageDriverStoreContext) -> "Offloading":
        return self


def is_reference(payload: Payload) -> bool:
    """Whether a payload only says where its content is kept."""
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
) -> DataConverter:
    """Return a converter that keeps payloads of at least `over` bytes in `blobs`, after its codec if it has one.

    For `short_forms` see `BlobDriver`.
    """
    storage = Offload(drivers=[BlobDriver(blobs, short_forms=short_forms)], payload_size_threshold=over)
    if type(converter) is not DataConverter:  # somebody's own, which stays what it is
        return dataclasses.replace(converter, external_storage=storage)
    return Offloading(
        payload_converter_class=converter.payload_converter_class,
        payload_codec=converter.payload_codec,
        failure_converter_class=converter.failure_converter_class,
        external_storage=storage,
    )


def shortened(converter: DataConverter) -> Mapping[str, str]:
    """Return the digests of what was read as its short form, each with the reason."""
    storage = converter.external_storage
    driver = storage.drivers[0] if storage else None
    return driver.shortened if isinstance(driver, BlobDriver) else {}


def with_storage(client: Client, blobs: Blobs, *, over: int = OFFLOAD_OVER) -> Client:
    """Return a client over the same connection that offloads; one that does already is returned as it stands."""
    if client.data_converter.external_storage is not None:
        return client
    converter = offloading(blobs, over=over, converter=client.data_converter)
    return Client(**(client.config() | {"data_converter": converter}))


def inline(client: Client) -> Client:
    """Return a client over the same connection that puts nothing aside."""
    converter = dataclasses.replace(client.data_converter, external_storage=None)
    return Client(**(client.config() | {"data_converter": converter}))


async def retrieved(payloads: Sequence[Payload], converter: DataConverter) -> list[Payload]:
    """Return what offloaded payloads hold, and the others as they stand; the codec is the caller's.

    Raises:
        StoreFailed: The store does not answer.
    """
    storage = converter.external_storage
    if not isinstance(storage, Offload):
        nowhere = Payload(metadata=UNREADABLE, data=b"this client was made without one.")
        return [nowhere if is_reference(p) else p for p in payloads]
    return await storage._retrieve_payload_sequence(payloads)


def short_form(data: bytes, digest: str) -> str | None:
    """Return JSON with its largest parts cut; None when it is none, or has too many parts. `digest` is told in it."""
    try:
        text = encode(_cut(decode(data), ROOM, len(data), digest))
    except ValueError:
        return None
    return text.decode() if len(text) <= MAX_BYTES else None


def offloaded(size: int, digest: str) -> str:
    """Return what stands for so many bytes."""
    shown = f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{size / 1_000:.1f} kB"
    return f"[offloaded: {shown}, sha256 {digest[:_SHOWN]}…]"


def _cut(value: Any, room: int, size: int, digest: str) -> Any:
    """Return a value, part of one of `size` bytes, with about `room` bytes. Looks at no more than it keeps."""
    if _size(value, room) <= room:
        return value
    match value:
        case str():
            # The note first: readers clip what they show.
            note = offloaded(len(value.encode()), digest)
            begins = value[: min(max(room - len(note) - 2, 0), _TEXT)]
            return f"{note} {begins}…" if begins else note
        case dict():
            named = list(itertools.islice(value.items(), max(room // _LEAST, 1)))
            rooms = _shared([_size(item, room) for _, item in named], room - sum(len(key) + 4 for key, _ in named))
            fields = {key: _cut(item, each, size, digest) for (key, item), each in zip(named, rooms, strict=True)}
            left = len(value) - len(fields)
            return {**fields, "…": f"{left:,} more {offloaded(size, digest)}"} if left else fields
        case list():
            first = value[: max(room // _LEAST, 1)]
            rooms = _shared([_size(item, room) + 1 for item in first], room)
            items = [_cut(item, each, size, digest) for item, each in zip(first, rooms, strict=True)]
            left = len(value) - len(items)
            more = f"{left:,} more {offloaded(size, digest)}"
            return [*items, {"…": more} if isinstance(value[0], dict) else more] if left else items
        case _:
            return value


def _size(value: Any, most: int) -> int:
    """Return about how many bytes a value is as JSON; any number over `most` when it is more than that."""
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


def _shared(sizes: list[int], room: int) -> list[int]:
    """Return how much room each part gets: the small ones all that they need, the large ones equal shares."""
    rooms = [0] * len(sizes)
    for left, index in zip(range(len(sizes), 0, -1), sorted(range(len(sizes)), key=sizes.__getitem__), strict=True):
        rooms[index] = min(sizes[index], max(room, 0) // left)
        room -= rooms[index]
    return rooms
