"""Inputs are accepted up to their size limit and refused one byte above it."""

import pytest

from waystation.core.approval import parse_answer
from waystation.core.errors import InvalidAnswer, InvalidInput
from waystation.core.payload import encode
from waystation.core.session_log import parse_message


def object_of_size(fields: dict[str, object], key: str, size: int) -> bytes:
    """Return an object that is padded under `key` to this number of bytes."""
    return encode({**fields, key: "x" * (size - len(encode({**fields, key: ""})))})


def test_an_answer_has_at_most_a_million_bytes() -> None:
    """The refusal names the size and the limit."""
    answer: dict[str, object] = {"function_call_id": "fc-1", "action": "approve"}
    assert parse_answer(object_of_size(answer, "comment", 1_000_000)).action == "approve"
    with pytest.raises(InvalidAnswer, match="is 1000001 bytes; at most 1000000 can be recorded"):
        parse_answer(object_of_size(answer, "comment", 1_000_001))


def test_a_message_of_a_conversation_has_at_most_400_000_bytes() -> None:
    """A message has a limit of its own, because the session carries it from run to run while it waits."""
    assert len(parse_message(object_of_size({}, "message", 400_000)).message) == 400_000 - len('{"message":""}')
    with pytest.raises(InvalidInput, match="may have 400000 bytes; this one has 400001"):
        parse_message(object_of_size({}, "message", 400_001))
