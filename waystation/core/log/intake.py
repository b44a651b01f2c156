"""Parse what arrives at an invocation: its input, and the signals after it. An outsider may have sent any of them."""

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from waystation.core import ids
from waystation.core.contract import (
    GIVE_UP_SIGNAL,
    MESSAGE_SIGNAL,
    WORKFLOW,
    InvocationInput,
    message_problem,
    parse_input,
)
from waystation.core.errors import InvalidAnswer, InvalidInput
from waystation.core.log.decision import Decided, decide_answer
from waystation.core.log.entry import AnswerIgnored, Began, GivenUp, MessageJoined, Refused
from waystation.core.log.log import Log
from waystation.core.payload import JsonObject, decode_foreign

_JOINED: TypeAdapter[MessageJoined] = TypeAdapter(MessageJoined)

NOT_FOUND = AnswerIgnored(
    "NotInStore",
    "The message was offloaded or encrypted, and the worker lacks its store or its key. Send it again once senders and "
    "workers share one store (`--store`) and the keys (`WAYSTATION_ENCRYPTION_KEYS`).",
)
"""The log entry for a signal whose offloaded content is missing from the store of the worker that received it."""

MAX_JOINED_REQUESTERS = 10
"""Maximum number of people and programs whose messages join an invocation, in addition to its own requesters. The
memo repeats their names for each pending call."""
TOO_MANY_REQUESTERS = (
    f"Messages of {MAX_JOINED_REQUESTERS} requesters have joined the invocation already. The session starts another "
    "one with this message."
)

OF_PARENTS: JsonObject = {
    "standing": (),
    "session": None,
    "signed_request": None,
    "joined_requesters": (),
    "origin": None,
    "depth": 0,
    "unknown": None,
}
"""Fields of an input that only a parent workflow may set, each with its default."""


def begin_entry(payloads: Sequence[bytes], *, parent: str = "", parent_run: str = "") -> Began | Refused:
    """Return the first entry of an invocation, created from its workflow arguments. Never raises.

    Without a parent, the fields in `OF_PARENTS` are dropped. A `session` that is not the parent makes the result
    `Refused`, as does any other invalid input.

    Args:
        payloads: The arguments.
        parent: ID of the workflow that started this invocation as its child, or empty.
        parent_run: ID of that workflow's run.
    """
    try:
        if len(payloads) != 1:
            raise InvalidInput(f"{WORKFLOW} takes one argument, an object, but received {len(payloads)}.")
        params = parse_input(payloads[0]).from_parent(parent, parent_run)
        if not parent and any(getattr(params, name) for name in OF_PARENTS):
            params = params.model_copy(update=OF_PARENTS)
        if params.session and not (params.session.id == parent and is_own_session(params)):
            raise InvalidInput("The `session` of an invocation must be the workflow that started it.")
        return Began(params)
    except InvalidInput as error:
        return Refused(str(error))


def is_own_session(params: InvocationInput) -> bool:
    """Return whether an input has no session, or one whose ID matches its tenant, app, user and session ID."""
    try:
        return params.session is None or params.session.id == ids.session(
            params.app_key, params.user_id, params.session_id or ""
        )
    except ValueError:
        return False


def decide_signal(log: Log, name: str, payloads: Sequence[bytes], now: float) -> Decided | MessageJoined | GivenUp:
    """Return the entry for a signal with any name and any payloads. Never raises.

    The caller must first have advanced the log's deadlines to `now`.
    """
    started, outcome = log.state.input, log.state.outcome
    if name == GIVE_UP_SIGNAL:
        return GivenUp() if log.state.holds else AnswerIgnored("InvalidAnswer", "The invocation is not held.")
    if name != MESSAGE_SIGNAL or started is None or started.session is None:
        return decide_answer(log, name, payloads, now)
    if outcome.ended or log.state.over or outcome.concluded or outcome.cancelled or outcome.failure:
        return AnswerIgnored("InvalidAnswer", "The message arrived after the invocation had ended.")
    try:
        joined = parse_joined_message(payloads)
    except InvalidAnswer as error:
        return AnswerIgnored("InvalidAnswer", str(error))
    names = {*log.state.approvals.joined_requesters, joined.requester}
    if len(names) > MAX_JOINED_REQUESTERS and joined.requester not in log.state.requesters:
        return AnswerIgnored("InvalidAnswer", TOO_MANY_REQUESTERS)
    return joined


def parse_joined_message(payloads: Sequence[bytes]) -> MessageJoined:
    """Parse a message forwarded by a session.

    Raises:
        InvalidAnswer: The payloads are not a single message in the form that sessions send.
    """
    try:
        body = _JOINED.validate_python(decode_foreign(payloads[0] if len(payloads) == 1 else b""))
    except (ValidationError, ValueError):
        body = None
    if body is None or message_problem(body.message):
        raise InvalidAnswer("A message must be one object with a `message` field, as sessions send it.")
    return body
