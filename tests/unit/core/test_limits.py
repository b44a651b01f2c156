"""Inputs are accepted up to their size limit and refused one byte above it."""

import pytest

from tests.unit.core.story import log_of, user_message
from waystation.core.approval import parse_answer
from waystation.core.contract import MESSAGE_SIGNAL, SessionLink
from waystation.core.errors import InvalidAnswer, InvalidInput
from waystation.core.log import AnswerIgnored, MessageJoined
from waystation.core.log.intake import MAX_JOINED_REQUESTERS, decide_signal
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


def test_messages_of_at_most_ten_other_requesters_join_an_invocation() -> None:
    """The message of one more starts another invocation. Those who have joined already may send more."""
    names = [f"person-{number}" for number in range(MAX_JOINED_REQUESTERS)]
    log = log_of(
        user_message("hi", user_id="ann", session_id="s", session=SessionLink(number=1)),
        *(MessageJoined("and", requester=name) for name in names),
    )

    def decide(requester: str) -> object:
        return decide_signal(log, MESSAGE_SIGNAL, [encode({"message": "more", "requester": requester})], 1_020)

    assert isinstance(decide("one-more"), AnswerIgnored)
    for name in (names[0], "ann"):
        assert decide(name) == MessageJoined("more", requester=name)
