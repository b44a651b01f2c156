"""Decide what a signal to an invocation is: an answer, a message that its session hands on, or nothing that counts."""

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from waystation.core import approval, ids, message
from waystation.core.entry import AnswerIgnored, AnswerSubmitted, Body, MessageJoined
from waystation.core.errors import InvalidAnswer
from waystation.core.log import Log
from waystation.core.payload import decode_foreign
from waystation.core.wire import MESSAGE_SIGNAL

_JOINED: TypeAdapter[MessageJoined] = TypeAdapter(MessageJoined)

NOT_FOUND = AnswerIgnored(
    "NotInStore",
    "What was sent is too large for a history, and the worker that took it does not find it in its store; send it "
    "again once senders and workers have the same store (--store).",
)
"""The entry for a signal whose content was put into a store, but not into the one of the worker that took it."""


def decide_signal(log: Log, name: str, payloads: Sequence[bytes], now: float) -> approval.Decided | MessageJoined:
    """Return the entry for a signal of any name with any payloads. Never raises.

    The log's deadlines must have been advanced to `now`.
    """
    if name != MESSAGE_SIGNAL or log.input is None or log.input.session is None:
        return approval.decide_signal(log, name, payloads, now)
    if log.ended or log.over or log.concluded or log.cancelled or log.failure:
        return AnswerIgnored("InvalidAnswer", "The message came when the invocation was over.")
    try:
        return joined(payloads)
    except InvalidAnswer as error:
        return AnswerIgnored("InvalidAnswer", str(error))


def joined(payloads: Sequence[bytes]) -> MessageJoined:
    """Read a message that a session hands on.

    Raises:
        InvalidAnswer: It is none.
    """
    try:
        body = _JOINED.validate_python(decode_foreign(payloads[0] if len(payloads) == 1 else b""))
    except (ValidationError, ValueError):
        body = None
    if body is None or (isinstance(body.message, dict) and message.problem_of(body.message)):
        raise InvalidAnswer("A message is one object with `message`, as a session sends it.")
    return body


def reference(ref: str, body: Body) -> str:
    """Return the reference of the entry that a signal or an update makes: it says what was decided."""
    match body:
        case AnswerIgnored():
            return ids.ignored(ref)
        case AnswerSubmitted():
            return ids.submitted(ref)
        case _:
            return ref
