"""Decide whether an answer counts.

Signal and update share this decision, and so do replay and every reader. The checks run in a fixed order, because a
forged duplicate must not learn more than a forged first answer: parse, call known, digest, authority, deadline,
duplicate.
"""

from collections.abc import Sequence

from waystation.core import ids
from waystation.core.answer import Answer, parse_answer
from waystation.core.call import CallState
from waystation.core.entry import AnswerCounted, AnswerIgnored
from waystation.core.errors import (
    AlreadyAnswered,
    AnswerRefused,
    DigestMismatch,
    Expired,
    InvalidAnswer,
    UnknownCall,
)
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.secrets import secret_keys
from waystation.core.wire import ANSWER_SIGNAL

REQUEST_ACTIONS = {
    "confirmation": frozenset({"approve", "reject", "edit"}),
    "credential": frozenset({"approve", "reject"}),
    "budget": frozenset({"approve", "reject"}),
}
LONG_RUNNING_ACTIONS = frozenset({"approve", "reject", "respond", "progress"})


def decide_signal(log: Log, name: str, payloads: Sequence[bytes], now: float) -> AnswerCounted | AnswerIgnored:
    """Return the entry for a signal of any name with any payloads. Never raises.

    The log's deadlines must have been advanced to `now`, so that what is said of the log is the same to every reader.
    """
    if name != ANSWER_SIGNAL:
        return AnswerIgnored("InvalidAnswer", f"No signal is named {name[:100]!r}; answers go to {ANSWER_SIGNAL!r}.")
    if len(payloads) != 1:
        return AnswerIgnored("InvalidAnswer", f"An answer is one argument, an object; {len(payloads)} arrived.")
    answer: Answer | None = None
    try:
        answer = parse_answer(payloads[0])
        return AnswerCounted(check(log, answer, now).id, answer)
    except AnswerRefused as refused:
        call_id, by = (answer.function_call_id, answer.by) if answer else (None, None)
        return AnswerIgnored(type(refused).__name__, str(refused), call_id, by)


def check(log: Log, answer: Answer, now: float) -> CallState:
    """Return the call that the answer settles at the time `now`.

    Raises:
        AnswerRefused: It does not count; the class says why.
    """
    call = log.calls.get(ids.requesting_call(answer.function_call_id))
    if call is None or not call.ever_waits:
        raise UnknownCall(
            f"No call {answer.function_call_id!r} waits in invocation {log.invocation_id!r}. "
            f"Waiting: {', '.join(c.id for c in log.waiting()) or 'none'}."
        )
    if answer.digest is not None and answer.digest != call.digest:
        raise DigestMismatch(f"The answer is for other arguments than call {call.id!r} has; look at it again.")
    if call.expired or (call.deadline is not None and call.deadline <= now):
        raise Expired(f"The deadline of call {call.id!r} has passed; it was not approved.")
    if not call.answerable:
        raise AlreadyAnswered(_standing(call))
    if answer.answer_id is not None and answer.answer_id in call.answer_ids:
        raise AlreadyAnswered(f"The answer {answer.answer_id!r} was recorded before; it was not applied again.")
    allowed = (REQUEST_ACTIONS[call.asked or "confirmation"]) if call.gate == "waiting" else LONG_RUNNING_ACTIONS
    if answer.action not in allowed:
        raise InvalidAnswer(
            f"Call {call.id!r} of {call.name!r} takes {', '.join(sorted(allowed))}; not {answer.action!r}."
        )
    if call.gate == "waiting" and call.asked == "credential":
        _refuse_secrets(answer)
    if call.gate == "waiting" and call.asked == "budget":
        try:
            log.check_grant(answer)
        except ValueError as error:
            raise InvalidAnswer(f"The `response` to {call.id!r} is no grant: {error}.") from None
    return call


def _refuse_secrets(answer: Answer) -> None:
    found = secret_keys({"response": answer.response, "comment": answer.comment})
    if found:
        raise InvalidAnswer(
            f"The answer holds what looks like a secret: {', '.join(found)}. Answers are kept in the history; put the "
            "credential into the credential store (`waystation authorize`), and then approve. A secret that was sent "
            "as a signal is in the history now: revoke it."
        )


def receipt(call: CallState, answer: Answer) -> JsonObject:
    """Return what `submit_answer` tells whoever gave an answer that counts."""
    return {"accepted": True, "function_call_id": call.id, "tool": call.name, "action": answer.action}


def _standing(call: CallState) -> str:
    if call.answer is None:
        return f"Call {call.id!r} is closed."
    by = f" by {call.answer.by!r}" if call.answer.by else ""
    return f"Call {call.id!r} was already answered{by}: {call.answer.action}. That answer stands."
