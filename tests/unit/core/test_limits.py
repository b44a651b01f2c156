"""How large may be what people send: up to the limit, and not one byte more."""

import pytest

from waystation.core import InvalidAnswer, InvalidInput, encode, parse_answer, parse_message


def filled(given: dict[str, object], key: str, size: int) -> bytes:
    """Return an object whose text under `key` makes it so many bytes."""
    return encode({**given, key: "x" * (size - len(encode({**given, key: ""})))})


def test_an_answer_has_at_most_a_million_bytes() -> None:
    """Over it, the sender is told size and limit."""
    answer: dict[str, object] = {"function_call_id": "fc-1", "action": "approve"}
    assert parse_answer(filled(answer, "comment", 1_000_000)).action == "approve"
    with pytest.raises(InvalidAnswer, match="is 1000001 bytes; at most 1000000 can be recorded"):
        parse_answer(filled(answer, "comment", 1_000_001))


def test_a_message_of_a_conversation_has_at_most_400_000_bytes() -> None:
    """It waits in the state of the session, which goes from run to run."""
    assert len(parse_message(filled({}, "message", 400_000)).message) == 400_000 - len('{"message":""}')
    with pytest.raises(InvalidInput, match="may have 400000 bytes; this one has 400001"):
        parse_message(filled({}, "message", 400_001))
