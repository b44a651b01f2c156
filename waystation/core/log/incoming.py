"""Decide what a signal to an invocation is: an answer, a message that its session hands on, or nothing that counts."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from waystation.core.approval import decision
from waystation.core.conversation.event import content_problem
from waystation.core.errors import InvalidAnswer, InvalidInput
from waystation.core.log.entry import AnswerIgnored, AnswerSubmitted, Began, Body, MessageJoined, Refused
from waystation.core.log.entry_ref import MessageRef
from waystation.core.log.log import Log
from waystation.core.payload import decode_foreign
from waystation.core.wire import MESSAGE_SIGNAL, WORKFLOW, parse_input

_JOINED: TypeAdapter[MessageJoined] = TypeAdapter(MessageJoined)

NOT_FOUND = AnswerIgnored(
    "NotInStore",
    "What was sent is too large for a history, and the worker that took it does not find it in its store; send it "
    "again once senders and workers have the same store (--store).",
)
"""The entry for a signal whose content was put into a store, but not into the one of the worker that took it."""


def begin_entry(payloads: Sequence[bytes], *, child: bool) -> Began | Refused:
    """Return the first entry of an invocation, given the arguments of its workflow. Never raises.

    Only a workflow that starts it as its `child` can pass remembered approvals and a session.
    """
    try:
        if len(payloads) != 1:
            raise InvalidInput(f"{WORKFLOW} takes one argument, an object; {len(payloads)} were given.")
        params = parse_input(payloads[0])
        if not child and (params.standing or params.session):
            params = params.model_copy(update={"standing": (), "session": None})
        return Began(params)
    except InvalidInput as error:
        return Refused(str(error))


def decide_signal(log: Log, name: str, payloads: Sequence[bytes], now: float) -> decision.Decided | MessageJoined:
    """Return the entry for a signal of any name with any payloads. Never raises.

    The log's deadlines must have been advanced to `now`.
    """
    started, outcome = log.state.input, log.state.outcome
    if name != MESSAGE_SIGNAL or started is None or started.session is None:
        return decision.decide_answer(log, name, payloads, now)
    if outcome.ended or log.state.over or outcome.concluded or outcome.cancelled or outcome.failure:
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
    if body is None or (isinstance(body.message, dict) and content_problem(body.message)):
        raise InvalidAnswer("A message is one object with `message`, as a session sends it.")
    return body


def judged_ref(ref: MessageRef, body: Body) -> MessageRef:
    """Return the reference of the entry that a signal or an update makes, with the verdict."""
    match body:
        case AnswerIgnored():
            return replace(ref, verdict="!")
        case AnswerSubmitted():
            return replace(ref, verdict="?")
        case _:
            return ref
