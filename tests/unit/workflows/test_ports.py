"""What workflows read from payloads."""

import pytest
from temporalio.api.common.v1 import Payload

from waystation.workflows.ports import data_of


@pytest.mark.parametrize("encoding", [b"json/plain", b"json/protobuf"])
def test_json_is_read_as_it_stands(encoding: bytes) -> None:
    """The core parses it."""
    assert data_of(Payload(metadata={"encoding": encoding}, data=b"{}")) == b"{}"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"encoding": b""},
        {"encoding": b"\xff\xfe"},
        {"encoding": b"binary/plain"},
        {"encoding": b"binary/null"},
        {"encoding": b"binary/protobuf"},
        {"encoding": b"binary/encrypted"},
    ],
)
def test_any_other_encoding_reads_as_broken_json(metadata: dict[str, bytes]) -> None:
    """Even if the bytes are JSON: nobody said so."""
    assert data_of(Payload(metadata=metadata, data=b'{"agent": "greeter", "message": "hi"}')) == b""
