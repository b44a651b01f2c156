"""Payloads are decoded wherever they are in a history."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, SearchAttributes
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from waystation.history import decode_events

NOTE = Payload(metadata={"encoding": b"json/plain"}, data=b'"note"')
VEILED = Payload(metadata={"encoding": b"binary/veiled"})
KINDS = [field.name for field in HistoryEvent.DESCRIPTOR.oneofs_by_name["attributes"].fields]


class Veil(PayloadCodec):
    """A codec that decodes every payload to the same value."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return encoded payloads."""
        return [VEILED for _ in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the value for each encoded payload."""
        return [NOTE if payload == VEILED else payload for payload in payloads]


def fill(message: Any, payload: Payload, types: tuple[Any, ...] = (SearchAttributes.DESCRIPTOR,)) -> None:
    """Put a payload at each place of a message, except in search attributes and in a type inside itself."""
    for field in message.DESCRIPTOR.fields:
        kind, part = field.message_type, getattr(message, field.name)
        if kind is None or kind in types:
            continue
        if kind.GetOptions().map_entry:
            if (kind := kind.fields_by_name["value"].message_type) is None:
                continue
            part = part["key"]
        elif field.is_repeated:
            part = part.add()
        if kind is Payload.DESCRIPTOR:
            part.CopyFrom(payload)
        else:
            fill(part, payload, (*types, kind))


@pytest.mark.parametrize("kind", KINDS)
async def test_each_payload_of_an_event_is_decoded(kind: str) -> None:
    """Payloads are decoded at every place of every type of event."""
    veiled, plain = HistoryEvent(), HistoryEvent()
    for event, payload in ((veiled, VEILED), (plain, NOTE)):
        fill(getattr(event, kind), payload)
        fill(event.user_metadata, payload)
    converter = dataclasses.replace(DataConverter.default, payload_codec=Veil())
    assert await decode_events([veiled], converter) == [plain]


async def test_a_failure_decoded_by_another_program_has_its_message() -> None:
    """The message is read from the attributes, which a codec server decrypts but does not move to their fields."""
    event = HistoryEvent()
    failure = event.workflow_execution_update_completed_event_attributes.outcome.failure
    converter = dataclasses.replace(
        DataConverter.default, failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    )
    error = ValueError("outer")
    error.__cause__ = ValueError("inner")
    await converter.encode_failure(error, failure)
    assert (failure.message, failure.cause.message) == ("Encoded failure", "Encoded failure")
    [decoded] = await decode_events([event], DataConverter.default)
    restored = decoded.workflow_execution_update_completed_event_attributes.outcome.failure
    assert (restored.message, restored.cause.message) == ("outer", "inner")
