"""The wire contract: names and payloads that other programs depend on.

They change only by gaining optional fields, or with a new name beside the old.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from waystation.core.approval.policy import StandingApproval
from waystation.core.budget import NO_USAGE, Budget, Grant, Spent, Usage
from waystation.core.conversation.event import message_problem
from waystation.core.errors import InvalidInput
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, Recorded, parse

MAX_TEXT = 100_000


class Fork(Recorded):
    """What an invocation takes over of another one, and what it does in another way."""

    invocation_id: str = Field(min_length=1, max_length=1_000)
    """Whose events it begins with."""
    event: int = Field(ge=1)
    """The number of the last of them."""
    run_id: str = Field(default="", max_length=100)
    """A run of that invocation; by default the latest."""
    results: dict[str, JsonObject] = Field(default_factory=dict)
    """Responses to calls that are not carried out, by their ids."""
    agent: str | None = Field(default=None, max_length=1_000)
    """Whose `instruction` and `model` are replaced; by default those of the agent that was started."""
    instruction: str | None = Field(default=None, max_length=MAX_TEXT, repr=False)
    model: str | None = Field(default=None, max_length=1_000)
    home: str = Field(default="", max_length=1_000)
    """The invocation under whose id its artifacts are kept, when it belongs to no session; only the engine sets it."""
    entries: int = 0
    """How many entries were taken over; only the engine sets it."""

    def memo(self) -> JsonObject:
        """Return what is to be seen of it from outside."""
        return {"invocation_id": self.invocation_id, "event": self.event}


MAX_REPORT_BYTES = 100_000
"""Entries beyond this are not repeated in a result; the session has them collected from the invocation's history."""
LASTING_ELSEWHERE = ("temp:", "user:", "app:")
"""Prefixes of state that is not the session's."""


class SessionLink(Recorded):
    """Which session an invocation belongs to, and how far the conversation had come when it began."""

    id: str = Field(max_length=1_000)
    """Workflow id of the session."""
    run_id: str = ""
    """The session's run that started it."""
    number: int
    """Which invocation of the session it is, from 1."""
    reports: tuple[str, ...] = ()
    """References of the reports that the session applied since it had started the invocation before this one, in
    order; see `ids.report`."""


class Report(Recorded):
    """What became of an invocation since its last report."""

    since: int
    """How many entries its log had by then."""
    entries: tuple[JsonObject, ...] | None = None
    """The entries that came since, see `waystation.core.segment`; None when they are too large to be repeated."""
    state_delta: JsonObject = Field(default_factory=dict)
    """What it changed in the session's state."""
    removed_keys: tuple[str, ...] = ()
    joined: tuple[int, ...] = ()
    """Numbers of the messages that the session handed to it meanwhile and that arrived."""
    standing: tuple[StandingApproval, ...] = ()
    """Which calls people allowed to run unasked, those that it was told of included."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered, as far as the invocation was told."""


def lasting(state: Mapping[str, object]) -> JsonObject:
    """Return the session's part of a state."""
    return {key: value for key, value in state.items() if not key.startswith(LASTING_ELSEWHERE)}


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[JsonObject, tuple[str, ...]]:
    """Return what differs in the session's part of a state, and which keys are gone."""
    delta = {key: value for key, value in lasting(after).items() if key not in before or before[key] != value}
    return delta, tuple(key for key in lasting(before) if key not in after)


TASK_QUEUE = "waystation"
WORKFLOW = "AgentInvocation"
ANSWER_SIGNAL = "answer"
ANSWER_UPDATE = "submit_answer"
SESSION_WORKFLOW = "AgentSession"
SEND = "send"
"""Signal and update of a session."""
CLOSE = "close"
"""Signal and update of a session."""
MESSAGE_SIGNAL = "message"
"""By which a session hands a further message to an invocation that is at work."""
PARKED_SIGNAL = "parked"
"""By which an invocation tells its session that it waits for a person."""
CHILD_ENDED_SIGNAL = "child_ended"
"""By which an invocation tells a session that no longer is its parent that it is over."""

SEARCH_AGENT = "WaystationAgent"
SEARCH_SESSION = "WaystationSession"
SEARCH_USER = "WaystationUser"
SEARCH_STATUS = "WaystationStatus"
SEARCH_PENDING = "WaystationPending"
SEARCH_ATTRIBUTES = {
    SEARCH_AGENT: "Keyword",
    SEARCH_SESSION: "Keyword",
    SEARCH_USER: "Keyword",
    SEARCH_STATUS: "Keyword",
    SEARCH_PENDING: "KeywordList",
}
MEMO_PENDING = "waystation_pending"
MEMO_SESSION = "waystation_session"
MEMO_FORK = "waystation_fork"
"""Says of a fork from which event of which invocation it goes on."""

DEFAULT_APP = "waystation"
DEFAULT_USER = "user"
MAX_NAME_CHARS = 1_000
"""As for workflow ids. Names are repeated in memos and in the input of each activity, which must not grow over 2 MB."""


class InvocationInput(Recorded):
    """How an invocation is started: the one argument of the workflow."""

    agent: str = Field(max_length=MAX_NAME_CHARS)
    message: str | JsonObject
    """Text, or a genai Content as JSON."""
    state: JsonObject = Field(default_factory=dict)
    user_id: str = Field(default=DEFAULT_USER, max_length=MAX_NAME_CHARS)
    session_id: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    app: str = Field(default=DEFAULT_APP, max_length=MAX_NAME_CHARS)
    budget: Budget = Field(default_factory=Budget)
    metadata: JsonObject = Field(default_factory=dict)
    streaming: bool = False
    """Whether workers tell the text of a model call while it still grows; see `waystation.core.partial`."""
    root: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Name of the root agent in whose tree `agent` is found; set for agents that other agents call."""
    depth: int = 0
    """How many agents call one another above this invocation."""
    origin: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Id of the invocation at the top, for agents that other agents call; they share its artifacts."""
    cut_after: int | None = Field(default=None, ge=1)
    """After how many events of history a run is continued as new, when that is not left to Waystation."""
    carried: JsonObject | None = Field(default=None, repr=False)
    """What a run has from the run that it continues; see `continued`. Only the engine sets it."""
    requester: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Who triggers it, when that is not `user_id`; policies may exclude that person from answering."""
    standing: tuple[StandingApproval, ...] = ()
    """Calls that may run unasked; taken only from the workflow that starts this one as its child."""
    session: SessionLink | None = None
    """Where earlier messages are read; taken only from the session that starts it as its child."""
    fork: Fork | None = None
    """What it takes over of another invocation, when it goes on from an event of that one."""

    @property
    def family(self) -> str:
        """Id of the invocation whose artifacts it shares; nothing when they are its own."""
        return self.origin or (self.fork.home if self.fork else "")

    @property
    def requesters(self) -> tuple[str, ...]:
        """Names of the person for whom it runs: whom `not_requester` excludes."""
        return tuple(name for name in (self.requester, self.user_id) if name)


class InvocationResult(Recorded):
    """What an invocation returns to whoever started it."""

    status: Literal["completed", "stopped"] = "completed"
    reason: str | None = None
    """Why it stopped."""
    text: str = ""
    content: JsonObject | None = None
    state_delta: JsonObject = Field(default_factory=dict)
    removed_keys: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    spent: Spent | None = None
    """With all agents that it called, and all attempts."""
    granted: Grant | None = None
    """What people allowed beyond the budget, when they did."""
    invocation_id: str = ""
    output: JsonObject | None = None
    """What the final text says, parsed, when the agent has an `output_schema`."""
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    """Artifacts that were saved, with their latest versions."""
    next_agent: str | None = None
    """Who would get the user's next message, when that is not the agent that was started; see adk-semantics 9.1."""
    report: Report | None = None
    """For a session that started it: what became of it."""
    standing: tuple[StandingApproval, ...] = ()
    """For whoever called it, or its session: which calls people allowed to run unasked from now on."""
    omitted: tuple[str, ...] = ()
    """Fields left out because the result would not have fitted into a payload."""

    def encode(self) -> bytes:
        """Return the result as JSON with every contract field present, so that readers need no defaults."""
        return self.__pydantic_serializer__.to_json(self)

    def fitted(self) -> "InvocationResult":
        """Return the result without what would exceed a payload; the history still has all of it."""
        result = self
        for name, empty in (("report", None), ("content", None), ("state_delta", {}), ("output", None), ("text", "")):
            if len(result.encode()) <= MAX_VALUE_BYTES:
                break
            if getattr(result, name) == empty:
                continue
            result = result.model_copy(update={name: empty, "omitted": (*result.omitted, name)})
        return result


RUNNING = "running"
MAX_KEYWORD = 200
"""The server refuses keywords over 2,048 bytes, and a refused upsert sticks the workflow."""


def found_by(agent: str, user_id: str, session_id: str | None) -> dict[str, str]:
    """Return the search attributes of an invocation or a session that never change."""
    values = {SEARCH_AGENT: agent, SEARCH_USER: user_id, SEARCH_SESSION: session_id}
    return {name: value[:MAX_KEYWORD] for name, value in values.items() if value}


def found_at_start(started: InvocationInput) -> dict[str, str]:
    """Return those that an invocation is started with: so it is found from its first moment, and spared an upsert."""
    return {**found_by(started.agent, started.user_id, started.session_id), SEARCH_STATUS: RUNNING}


def parse_input(data: bytes) -> InvocationInput:
    """Read the input of an invocation.

    Raises:
        InvalidInput: It is not JSON, or lacks what the contract requires. The message repeats no content.
    """
    parsed = parse(
        InvocationInput, data, InvalidInput, what=f"The input of {WORKFLOW}", send="with `agent` and `message`"
    )
    if problem := message_problem(parsed.message):
        raise InvalidInput(f"The message of {WORKFLOW} is invalid: {problem}")
    return parsed
