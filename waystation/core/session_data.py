"""What a session is started with, is sent, and hands from run to run."""

from typing import Literal

from pydantic import Field

from waystation.core import ids, message
from waystation.core.budget import Budget
from waystation.core.errors import InvalidInput
from waystation.core.payload import JsonObject, Recorded, decode, encode, parse
from waystation.core.policy import StandingApproval
from waystation.core.report import Report
from waystation.core.segment import SegmentRef
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER, MAX_NAME_CHARS, SESSION_WORKFLOW

MAX_MESSAGE_BYTES = 400_000
MAX_STATE_BYTES = 700_000
"""State, queue and ids are carried over together; with them a payload stays under the server's 2 MB."""

Busy = Literal["queue", "reject", "join"]
TurnStatus = Literal["queued", "running", "waiting", "completed", "stopped", "failed", "cancelled"]
OPEN: tuple[TurnStatus, ...] = ("running", "waiting")


class SessionMessage(Recorded):
    """What `send` is given."""

    message: str | JsonObject
    message_id: str | None = Field(default=None, max_length=100)
    when_busy: Busy = "queue"
    state: JsonObject = Field(default_factory=dict)
    """Changes of the session's state, made when its invocation begins."""
    budget: Budget = Field(default_factory=Budget)
    metadata: JsonObject = Field(default_factory=dict)
    streaming: bool = False


class Turn(Recorded):
    """One invocation of the session."""

    n: int
    status: TurnStatus
    message: str = ""
    """The beginning of what was said."""
    known: int = 1
    """How many entries of its log the session has."""
    joined: int = 0
    """How many messages were handed to it."""
    unconfirmed: tuple[tuple[int, SessionMessage], ...] = ()
    """Those of them that it has not said to have."""


class KeptSession(Recorded):
    """A session without its transcript."""

    state: JsonObject = Field(default_factory=dict)
    next_agent: str | None = None
    turns: tuple[Turn, ...] = ()
    queue: tuple[tuple[int, SessionMessage], ...] = ()
    message_ids: tuple[tuple[str, int], ...] = ()
    started: int = 0
    numbered: int = 0
    refused: int = 0
    closing: bool = False
    standing: tuple[StandingApproval, ...] = ()
    """Which calls people allowed to run unasked."""
    attributes: bool = False


class SessionInput(Recorded):
    """How a session is started: the one argument of the workflow."""

    agent: str = Field(max_length=MAX_NAME_CHARS)
    app: str = Field(default=DEFAULT_APP, max_length=MAX_NAME_CHARS)
    user_id: str = Field(default=DEFAULT_USER, max_length=MAX_NAME_CHARS)
    session_id: str = Field(max_length=MAX_NAME_CHARS)
    state: JsonObject = Field(default_factory=dict)
    cut_after: int = Field(default=80, ge=1, le=500)
    """After how many invocations the session continues in a new run."""
    carried: KeptSession | None = None
    """What earlier runs leave to this one."""
    segments: tuple[SegmentRef, ...] = ()
    """Where the transcript of earlier runs is kept, oldest first."""
    items: tuple[JsonObject, ...] = ()
    """What of it follows those, when it is small."""


class CollectInput(Recorded):
    """Input of the activity that reads what an invocation did."""

    number: int
    since: int
    at: int | None = None
    """Up to which entry, where the invocation is said to wait, if there are so many; None for as far as it is."""


class Collected(Recorded):
    """What an invocation did since its last report, read from its own history."""

    number: int
    status: TurnStatus
    """What it was at the last of the entries."""
    at: int = 0
    """How many entries it had there."""
    report: Report | None = None
    """None when it is neither waiting nor over there."""
    segment: SegmentRef | None = None
    """Where the entries are kept, when they are large."""
    next_agent: str | None = None


class SessionArchiveInput(Recorded):
    """Input of the activity that packs a transcript."""

    reports: tuple[str, ...] = ()
    """As in `SessionLink`: what was applied since the latest invocation began."""


class KeptTranscript(Recorded):
    """A transcript as the next run is given it."""

    segments: tuple[SegmentRef, ...] = ()
    items: tuple[JsonObject, ...] = ()


def parse_session(data: bytes, workflow_id: str, *, continues: bool) -> SessionInput:
    """Read the input of a session; `continues` says whether the server says that the run continues another.

    Raises:
        InvalidInput: It is not one, or the workflow has another session's id.
    """
    what = f"The input of {SESSION_WORKFLOW}"
    given = parse(SessionInput, data, InvalidInput, what=what, send="with `agent` and `session_id`")
    try:
        expected = ids.session(given.app, given.user_id, given.session_id)
    except ValueError as error:
        raise InvalidInput(f"{what} cannot be used: {str(error)[:300]}") from None
    if workflow_id != expected:
        raise InvalidInput(f"The session of this app, user and name has the workflow id {expected[:200]!r}.")
    if len(encode(given.state)) > MAX_STATE_BYTES:
        raise InvalidInput(f"The state of a session may have {MAX_STATE_BYTES} bytes; this one has more.")
    return given if continues else begun(given)


def begun(given: SessionInput) -> SessionInput:
    """Return the input of a session's first run: anybody may send what only an earlier run can hand over."""
    return given.model_copy(update={"carried": None, "segments": (), "items": ()})


def check_size(data: bytes) -> None:
    """Look whether a message fits.

    Raises:
        InvalidInput: It does not.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidInput(
            f"A message may have {MAX_MESSAGE_BYTES} bytes; this one has {len(data)}. Send it in parts, or keep "
            "what is long where a tool of the agent reads it."
        )


def parse_message(data: bytes) -> SessionMessage:
    """Read what `send` is given.

    Raises:
        InvalidInput: It is no message.
    """
    check_size(data)
    given = parse(SessionMessage, data, InvalidInput, what="The message", send="with `message`")
    if isinstance(given.message, dict) and (problem := message.problem_of(given.message)):
        raise InvalidInput(f"The message is invalid: {problem}")
    return given


def parse_nudge(data: bytes) -> tuple[int, int | None]:
    """Read what an invocation tells its session: its number, and for a wait, at which entry.

    Raises:
        InvalidInput: It is neither.
    """
    try:
        given = decode(data)
        number, at = given["invocation"], given.get("at")
    except (ValueError, TypeError, KeyError, AttributeError):
        number = at = None
    if not isinstance(number, int) or not (at is None or isinstance(at, int)):
        raise InvalidInput("A nudge of an invocation is one object with its number.")
    return number, at
