"""Reading payloads in workflows."""

import pytest
from temporalio.api.common.v1 import Payload

from waystation.workflows.ports import data_of


@pytest.mark.parametrize("encoding", [b"json/plain", b"json/protobuf"])
def test_json_is_read_unchanged(encoding: bytes) -> None:
    """JSON is not parsed here, because the core parses it."""
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
def test_any_other_encoding_is_invalid_json(metadata: dict[str, bytes]) -> None:
    """Bytes with another encoding are invalid, even if they are JSON."""
    assert data_of(Payload(metadata=metadata, data=b'{"agent": "greeter", "message": "hi"}')) == b""
