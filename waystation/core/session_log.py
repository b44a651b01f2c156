"""Decide what a session does with a message, and which invocation begins next.

Pure: the same messages and reports in the same order produce the same decisions. Each run of the workflow holds one
`SessionLog`. Apart from the transcript, `SessionLog.kept()` returns everything that the next run needs.
"""

from typing import Any, Literal

from pydantic import Field

from waystation.core import ids, summary
from waystation.core.approval import PLAIN_TOKEN, RememberedApproval, is_encrypted, merge_remembered
from waystation.core.budget import Budget
from waystation.core.contract import (
    DEFAULT_APP,
    DEFAULT_USER,
    MAX_KEYWORD,
    MAX_NAME_CHARS,
    MAX_REQUESTER_CHARS,
    SEARCH_AGENT,
    SEARCH_SESSION,
    SEARCH_TENANT,
    SEARCH_USER,
    SESSION_WORKFLOW,
    AppName,
    InvocationInput,
    InvocationReport,
    SegmentRef,
    SessionLink,
    TenantName,
    TextInterval,
    message_problem,
    session_part,
)
from waystation.core.errors import InvalidInput, QueueFull, SessionBusy, SessionClosed, SessionRefused
from waystation.core.payload import JsonObject, Recorded, decode, encode, parse

MAX_MESSAGE_BYTES = 400_000
MAX_STATE_BYTES = 700_000
"""Maximum size of a session's state. A message whose `state` would make it larger is refused. State, queue and IDs are
carried over in one payload, which the server limits to 2 MB."""

Busy = Literal["queue", "reject", "join"]
TurnStatus = Literal["queued", "running", "waiting", "completed", "stopped", "failed", "cancelled"]
OPEN_STATUSES: tuple[TurnStatus, ...] = ("running", "waiting")


class SessionMessage(Recorded):
    """The argument of `send`: a message to the session."""

    message: str | JsonObject
    message_id: str | None = Field(default=None, max_length=100)
    when_busy: Busy = "queue"
    state: JsonObject = Field(default_factory=dict)
    """Changes to the session's state, applied when the invocation for this message begins."""
    budget: Budget = Field(default_factory=Budget)
    metadata: JsonObject = Field(default_factory=dict)
    streaming: bool = False
    text_interval_s: TextInterval | None = None
    agent: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Name of the root agent that handles this message and those after it. If None, the agent does not change."""
    requester: str | None = Field(default=None, max_length=MAX_REQUESTER_CHARS)
    """The person or program that sends the message, if not the session's user."""
    token: str | None = Field(default=None, repr=False)
    """Proof of the sender's identity, encrypted for the workers. Requires a `message_id`, so that it counts only
    once."""
    traceparent: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The sender's span, passed to the invocation for this message."""


class StateChange(Recorded):
    """The argument of `change_state`: changes to the state of a session outside its invocations."""

    state: JsonObject
    change_id: str | None = Field(default=None, max_length=100)
    """An ID that the sender chooses. Each ID counts only once, also among the `message_id`s of the session."""


class Turn(Recorded):
    """One invocation of the session."""

    n: int
    status: TurnStatus
    message: str = ""
    """The beginning of the user's message."""
    known: int = 1
    """Number of the invocation's log entries that the session has received."""
    joined: int = 0
    """Number of messages that joined the invocation while it was running."""
    unconfirmed: tuple[tuple[int, SessionMessage], ...] = ()
    """Joined messages that the invocation has not confirmed yet, each with its number."""


class CarriedSession(Recorded):
    """The state of a session without its transcript, carried from run to run."""

    state: JsonObject = Field(default_factory=dict)
    next_agent: str | None = None
    turns: tuple[Turn, ...] = ()
    queue: tuple[tuple[int, SessionMessage], ...] = ()
    message_ids: tuple[tuple[str, int], ...] = ()
    started: int = 0
    numbered: int = 0
    refused: int = 0
    closing: bool = False
    standing: tuple[RememberedApproval, ...] = ()
    """Remembered approvals."""
    attributes: bool = False


class SessionInput(Recorded):
    """Input of the session workflow."""

    agent: str = Field(max_length=MAX_NAME_CHARS)
    app: AppName = DEFAULT_APP
    user_id: str = Field(default=DEFAULT_USER, max_length=MAX_NAME_CHARS)
    session_id: str = Field(max_length=MAX_NAME_CHARS)
    state: JsonObject = Field(default_factory=dict)
    cut_after: int = Field(default=80, ge=1, le=500)
    """Number of invocations that a run starts before the session continues as new."""
    carried: CarriedSession | None = None
    """State of the previous run."""
    segments: tuple[SegmentRef, ...] = ()
    """Stored segments of the transcript of earlier runs, oldest first."""
    items: tuple[JsonObject, ...] = ()
    """Transcript items that follow the segments, if they are small enough to pass inline."""
    tenant: TenantName | None = None
    """The tenant of the session and of its invocations, or None."""

    @property
    def artifact_scope(self) -> dict[str, str]:
        """The names under which the artifacts of the session are stored, as arguments of an artifact service."""
        return ids.stored_names(self.app_key, self.user_id, self.session_id)

    @property
    def app_key(self) -> str:
        """The key that separates the app's data from that of other apps and tenants."""
        return ids.app_key(self.app, self.tenant)


def search_attributes_of(started: InvocationInput | SessionInput) -> dict[str, str]:
    """Return the search attributes of an invocation or a session that never change, omitting those without a value.

    Null characters are removed: a server on PostgreSQL cannot store them, and would never list the workflow.
    """
    values = {
        SEARCH_AGENT: started.agent,
        SEARCH_USER: started.user_id,
        SEARCH_SESSION: started.session_id,
        SEARCH_TENANT: started.tenant,
    }
    return {name: value.replace("\0", "")[:MAX_KEYWORD] for name, value in values.items() if value}


class CollectInput(Recorded):
    """Input of the activity that reads an invocation's own history."""

    number: int
    since: int
    at: int | None = None
    """Log length at which the invocation reported that it is waiting, which is where reading stops. If None, the
    activity reads to the end of the invocation's history."""


class Collected(Recorded):
    """The progress of an invocation since its last report, read from its own history."""

    number: int
    status: TurnStatus
    """Status of the invocation after the last of the entries read."""
    at: int = 0
    """Length of the invocation's log after the last of the entries read."""
    report: InvocationReport | None = None
    """The report, or None if there is nothing to report, for example while the invocation is running."""
    segment: SegmentRef | None = None
    """The stored entries, if they are too large for the report."""
    next_agent: str | None = None


class SessionArchiveInput(Recorded):
    """Input of the activity that archives a transcript."""

    reports: tuple[str, ...] = ()
    """References to the reports applied since the latest invocation began, as in `SessionLink`."""


class StoredTranscript(Recorded):
    """The transcript of a session in the form in which the session's next run receives it."""

    segments: tuple[SegmentRef, ...] = ()
    items: tuple[JsonObject, ...] = ()


def parse_session(data: bytes, workflow_id: str, *, continues: bool) -> SessionInput:
    """Parse the input of a session.

    `continues` is true if the server reports that the run continues another run. If it is false, the fields that
    only a previous run may set are dropped.

    Raises:
        InvalidInput: The input is invalid, or it does not belong to the session with this workflow ID.
    """
    what = f"The input of {SESSION_WORKFLOW}"
    session_input = parse(SessionInput, data, InvalidInput, what=what, send="with `agent` and `session_id`")
    try:
        expected = ids.session(session_input.app_key, session_input.user_id, session_input.session_id)
    except ValueError as error:
        raise InvalidInput(f"{what} cannot be used: {str(error)[:300]}") from None
    if workflow_id != expected:
        raise InvalidInput(f"The session of this tenant, app, user and name has the workflow id {expected[:200]!r}.")
    if len(encode(session_input.state)) > MAX_STATE_BYTES:
        raise InvalidInput(f"The state of a session may have {MAX_STATE_BYTES} bytes; this one has more.")
    return session_input if continues else without_carried(session_input)


def without_carried(session_input: SessionInput) -> SessionInput:
    """Return the input for a session's first run.

    Drops the fields that only a previous run may set, because any client could send them.
    """
    return session_input.model_copy(update={"carried": None, "segments": (), "items": ()})


def check_message_size(data: bytes) -> None:
    """Check that an encoded message is not too large.

    Raises:
        InvalidInput: The message is too large.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidInput(
            f"A message may have {MAX_MESSAGE_BYTES} bytes; this one has {len(data)}. Send it in parts, or keep "
            "what is long where a tool of the agent reads it."
        )


def parse_message(data: bytes) -> SessionMessage:
    """Parse the argument of `send`.

    Raises:
        InvalidInput: The data is too large or is not a valid message.
    """
    check_message_size(data)
    message = parse(SessionMessage, data, InvalidInput, what="The message", send="with `message`")
    if problem := message_problem(message.message):
        raise InvalidInput(f"The message is invalid: {problem}")
    if message.token is not None and not is_encrypted(message.token):
        raise InvalidInput(PLAIN_TOKEN)
    if message.token is not None and message.message_id is None:
        raise InvalidInput("A message with a `token` needs a `message_id`, so that the token counts only once.")
    return message


def parse_state_change(data: bytes) -> StateChange:
    """Parse the argument of `change_state`.

    Raises:
        InvalidInput: The data is too large or is not a valid change.
    """
    check_message_size(data)
    return parse(StateChange, data, InvalidInput, what="The change of the state", send="with `state`")


def change_state(state: JsonObject, change: StateChange) -> JsonObject:
    """Return a session's state after a change.

    Raises:
        InvalidInput: The state would be too large.
    """
    changed = {**state, **session_part(change.state)}
    if len(encode(changed)) > MAX_STATE_BYTES:
        raise InvalidInput(f"The state of the session would have more than {MAX_STATE_BYTES} bytes.")
    return changed


def parse_nudge(data: bytes) -> tuple[int, int | None]:
    """Parse a signal from an invocation to its session.

    Return the invocation's number and the length of its log. The length is None unless the invocation is waiting.

    Raises:
        InvalidInput: The data is not a valid signal.
    """
    try:
        nudge = decode(data)
        number, at = nudge["invocation"], nudge.get("at")
    except (ValueError, TypeError, KeyError, AttributeError):
        number = at = None
    if not isinstance(number, int) or not (at is None or isinstance(at, int)):
        raise InvalidInput("A nudge of an invocation is one object with its number.")
    return number, at


MAX_QUEUED = 100
MAX_QUEUED_BYTES = 500_000
MAX_MESSAGE_IDS = 1_000
MAX_SHOWN_TURNS = 100
"""Maximum number of ended invocations that a session remembers, and that the query `invocations` lists, in addition to
the queued and open ones."""
MAX_REFUSED = 20


class SessionLog:
    """Holds the state of a session and makes its decisions."""

    def __init__(self, workflow_id: str, session_input: SessionInput) -> None:
        carried = session_input.carried or CarriedSession(state=session_input.state)
        self.id = workflow_id
        self.given = session_input
        self.state: JsonObject = dict(carried.state)
        self.next_agent = carried.next_agent
        self.turns = {turn.n: turn for turn in carried.turns}
        self.queue = list(carried.queue)
        self.message_ids = dict(carried.message_ids)
        self.started, self.numbered, self.refused = carried.started, carried.numbered, carried.refused
        self.closing = carried.closing
        self.attributes = carried.attributes
        self.standing = carried.standing
        self.refusals: list[JsonObject] = []
        self.reports: list[str] = []
        """References to the reports applied since the latest invocation began."""

    def kept(self) -> CarriedSession:
        """Return the state to carry over to the next run."""
        return CarriedSession(
            state=self.state,
            next_agent=self.next_agent,
            turns=tuple(self.turns.values()),
            queue=tuple(self.queue),
            message_ids=tuple(self.message_ids.items()),
            started=self.started,
            numbered=self.numbered,
            refused=self.refused,
            closing=self.closing,
            attributes=self.attributes,
            standing=self.standing,
        )

    def following(self, transcript: StoredTranscript) -> SessionInput:
        """Return the input of the next run."""
        update = {"state": {}, "carried": self.kept(), "segments": transcript.segments, "items": transcript.items}
        return self.given.model_copy(update=update)

    # Messages.

    @property
    def current(self) -> int | None:
        """Number of the running invocation, or None if none is running, so that the next one may begin."""
        return next((number for number, turn in self.turns.items() if turn.status == "running"), None)

    @property
    def busy(self) -> bool:
        """Whether a new message has to wait, because an invocation is running or other messages are queued."""
        return self.current is not None or bool(self.queue)

    @property
    def due(self) -> bool:
        """Whether a message is queued and no invocation is running, so that the next invocation can begin."""
        return self.current is None and bool(self.queue)

    @property
    def open(self) -> list[Turn]:
        """The invocations that are running or waiting for an approver."""
        return [turn for turn in self.turns.values() if turn.status in OPEN_STATUSES]

    def check(self, message: SessionMessage) -> None:
        """Check that the session can accept a message. A message with a known `message_id` always passes.

        Raises:
            SessionRefused: The session cannot accept the message. The subclass indicates the reason.
            InvalidInput: The session's state would grow too large.
        """
        if message.message_id is not None and message.message_id in self.message_ids:
            return
        if self.closing:
            raise SessionClosed("The session is closed; it takes no further message.")
        if message.when_busy == "reject" and self.busy:
            raise SessionBusy("The session works on another message; send again later, or let this one queue.")
        # Unconfirmed joined messages count as well, because they are carried over together with the queue.
        waiting = [*self.queue, *(joined for turn in self.turns.values() for joined in turn.unconfirmed)]
        if len(waiting) >= MAX_QUEUED or _size(waiting) + _size([(0, message)]) > MAX_QUEUED_BYTES:
            raise QueueFull(f"{len(waiting)} messages wait already; send again when the session has caught up.")
        if len(encode({**self.state, **message.state})) > MAX_STATE_BYTES:
            raise InvalidInput(f"The state of the session would have more than {MAX_STATE_BYTES} bytes.")

    def accept(self, message: SessionMessage) -> JsonObject:
        """Accept a message and return the receipt. Call `check` first. A duplicate changes nothing.

        `join` in the receipt is the number of a joined message that the invocation has not confirmed yet.
        """
        known = self.message_ids.get(message.message_id) if message.message_id is not None else None
        if known is not None:
            turn = self.turns.get(known)
            receipt = {"invocation_id": self.invocation_id(known), "status": turn.status if turn else "completed"}
            joined = [number for number, m in turn.unconfirmed if m.message_id == message.message_id] if turn else []
            return receipt | {"duplicate": True} | ({"join": joined[0]} if joined else {})
        if message.when_busy == "join" and self.current is not None and not self.queue:
            turn = self.turns[self.current]
            number = turn.joined + 1
            self._set(turn, joined=number, unconfirmed=(*turn.unconfirmed, (number, message)))
            _remember(self.message_ids, message.message_id, turn.n)
            joined_to: JsonObject = {"invocation_id": self.invocation_id(turn.n), "status": "joined"}
            return joined_to | ({"join": number} if message.message_id else {})  # otherwise, nobody can follow it
        at_once = not self.busy
        number = self._enqueue(message)
        _remember(self.message_ids, message.message_id, number)
        return {"invocation_id": self.invocation_id(number), "status": "started" if at_once else "queued"}

    def refuse(self, error: SessionRefused | InvalidInput) -> None:
        """Record that a signal was refused."""
        self.refused += 1
        refusal = {"reason": type(error).__name__, "message": str(error)[:300]}
        self.refusals = [*self.refusals, refusal][-MAX_REFUSED:]

    def _enqueue(self, message: SessionMessage, *, first: bool = False) -> int:
        self.numbered += 1
        text = message.message if isinstance(message.message, str) else "…"
        self.turns[self.numbered] = Turn(n=self.numbered, status="queued", message=summary.clip(text))
        self.queue.insert(0 if first else len(self.queue), (self.numbered, message))
        return self.numbered

    def change_state(self, change: StateChange) -> None:
        """Change the state that the next invocation starts with. A duplicate changes nothing.

        Raises:
            InvalidInput: The state would be too large.
        """
        if change.change_id is None or change.change_id not in self.message_ids:
            self.state = change_state(self.state, change)
            _remember(self.message_ids, change.change_id, 0)

    # Invocations.

    def invocation_id(self, number: int) -> str:
        """Return the workflow ID of the invocation with this number."""
        return ids.session_invocation(self.id, number)

    def start(self, run_id: str) -> tuple[int, InvocationInput] | None:
        """Begin the next invocation. Return its number and input, or None if no invocation can begin now."""
        if not self.due:
            return None
        number, message = self.queue.pop(0)
        if message.agent and message.agent != self.given.agent:
            self.given, self.next_agent = self.given.model_copy(update={"agent": message.agent}), None
        state = {**self.state, **message.state}
        self.state = session_part(state)
        started = InvocationInput(
            agent=self.next_agent or self.given.agent,
            root=self.given.agent if self.next_agent else None,
            message=message.message,
            state=state,
            user_id=self.given.user_id,
            session_id=self.given.session_id,
            app=self.given.app,
            budget=message.budget,
            metadata=message.metadata,
            streaming=message.streaming,
            text_interval_s=message.text_interval_s,
            standing=self.standing,
            requester=message.requester,
            token=message.token,
            session=SessionLink(
                id=self.id,
                run_id=run_id,
                number=number,
                reports=tuple(self.reports),
                message_id=message.message_id if message.token or message.when_busy == "join" else None,
            ),
            tenant=self.given.tenant,
            traceparent=message.traceparent,
        )
        self.reports = []
        self.started += 1
        self._set(self.turns[number], status="running")
        return number, started

    def continues_from(self, number: int, report: InvocationReport | None) -> bool:
        """Return whether an open invocation's report begins exactly where the entries received so far end."""
        turn = self.turns.get(number)
        return turn is not None and report is not None and turn.status in OPEN_STATUSES and report.since == turn.known

    def apply(self, number: int, report: InvocationReport, length: int) -> None:
        """Apply an invocation's report. `length` is the length of the invocation's log at the end of the report."""
        turn = self.turns[number]
        self.state = {key: value for key, value in self.state.items() if key not in report.removed_keys}
        self.state.update(session_part(report.state_delta))
        self.reports.append(ids.report(number, report.since))
        self.standing = merge_remembered(self.standing, report.standing)
        left = tuple(joined for joined in turn.unconfirmed if joined[0] not in report.joined)
        self._set(turn, known=length, unconfirmed=left)
        self.attributes = self.attributes or report.search_attributes

    def park(self, number: int) -> None:
        """Record that a running invocation is now waiting for an approver, so that the next one may begin."""
        if self.turns[number].status == "running":
            self._set(self.turns[number], status="waiting")

    def end(self, number: int, status: TurnStatus, next_agent: str | None = None) -> None:
        """Record that an open invocation ended. Does nothing if the invocation is not open.

        Joined messages that it did not confirm move to the front of the queue, and each begins a separate invocation.
        """
        turn = self.turns[number]
        if turn.status not in OPEN_STATUSES:
            return
        if next_agent:
            self.next_agent = next_agent if next_agent != self.given.agent else None
        for _, message in reversed(turn.unconfirmed):
            _remember(self.message_ids, message.message_id, self._enqueue(message, first=True))
        self._set(turn, status=status, unconfirmed=())
        closed = [n for n, other in self.turns.items() if other.status not in (*OPEN_STATUSES, "queued")]
        for old in closed[:-MAX_SHOWN_TURNS]:
            del self.turns[old]

    def _set(self, turn: Turn, **fields: Any) -> None:
        self.turns[turn.n] = turn.model_copy(update=fields)

    @property
    def status(self) -> str:
        """The session's status in lists: `closed`, `waiting` (an invocation waits for an approver) or `open`."""
        if self.closing:
            return "closed"
        return "waiting" if any(turn.status == "waiting" for turn in self.turns.values()) else "open"

    @property
    def over(self) -> bool:
        """Whether the session is closed and has nothing left to do."""
        return self.closing and not self.queue and not self.open


def _remember(numbers: dict[str, int], message_id: str | None, number: int) -> None:
    if message_id is not None:
        numbers[message_id] = number
        while len(numbers) > MAX_MESSAGE_IDS:
            del numbers[next(iter(numbers))]


def _size(queue: list[tuple[int, SessionMessage]]) -> int:
    return sum(len(message.encode()) for _, message in queue)
