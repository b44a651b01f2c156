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
    """The source of a fork and the changes to it."""

    invocation_id: str = Field(min_length=1, max_length=1_000)
    """Id of the source invocation."""
    event: int = Field(ge=1)
    """Number of the last event taken over."""
    run_id: str = Field(default="", max_length=100)
    """A run of the source; by default the latest."""
    results: dict[str, JsonObject] = Field(default_factory=dict)
    """Responses for calls that do not run, by function call id."""
    agent: str | None = Field(default=None, max_length=1_000)
    """The agent whose `instruction` and `model` are replaced; by default the agent that was started."""
    instruction: str | None = Field(default=None, max_length=MAX_TEXT, repr=False)
    model: str | None = Field(default=None, max_length=1_000)
    home: str = Field(default="", max_length=1_000)
    """The invocation that owns the artifacts, outside a session. Only the engine sets it."""
    entries: int = 0
    """Number of entries taken over. Only the engine sets it."""

    def memo(self) -> JsonObject:
        """Return the fork's memo."""
        return {"invocation_id": self.invocation_id, "event": self.event}


MAX_REPORT_BYTES = 100_000
"""Larger entries are not repeated in a result; the session collects them from the invocation's history."""
FOREIGN_PREFIXES = ("temp:", "user:", "app:")
"""Prefixes of state that does not belong to the session."""


class SessionLink(Recorded):
    """The session of an invocation, and the reports that preceded it."""

    id: str = Field(max_length=1_000)
    """Workflow id of the session."""
    run_id: str = ""
    """The session's run that started the invocation."""
    number: int
    """Number of the invocation in the session, from 1."""
    reports: tuple[str, ...] = ()
    """References of the reports that the session applied after it started the previous invocation, in order; see
    `ids.report`."""


class Report(Recorded):
    """The progress of an invocation since its last report to the session."""

    since: int
    """Length of its log at the last report."""
    entries: tuple[JsonObject, ...] | None = None
    """The new entries, as in `log.snapshot.entries_to_json`; None if they are too large to be repeated."""
    state_delta: JsonObject = Field(default_factory=dict)
    """Values that it set in the session's state."""
    removed_keys: tuple[str, ...] = ()
    joined: tuple[int, ...] = ()
    """Numbers of the joined messages that arrived."""
    standing: tuple[StandingApproval, ...] = ()
    """Remembered approvals, including those that it received at the start."""
    search_attributes: bool = False
    """Whether the invocation knows that Waystation's search attributes are registered."""


def session_part(state: Mapping[str, object]) -> JsonObject:
    """Return the session's part of a state."""
    return {key: value for key, value in state.items() if not key.startswith(FOREIGN_PREFIXES)}


def diff_state(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[JsonObject, tuple[str, ...]]:
    """Return the values that changed in the session's part of a state, and the keys that were removed."""
    delta = {key: value for key, value in session_part(after).items() if key not in before or before[key] != value}
    return delta, tuple(key for key in session_part(before) if key not in after)


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
"""Signal of a session to an invocation at work: a further message."""
PARKED_SIGNAL = "parked"
"""Signal of an invocation to its session: it waits for an approver."""
CHILD_ENDED_SIGNAL = "child_ended"
"""Signal of an invocation to a session that is no longer its parent: it ended."""

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
"""Memo of a fork: source invocation and event."""

DEFAULT_APP = "waystation"
DEFAULT_USER = "user"
MAX_NAME_CHARS = 1_000
"""The limit of workflow ids. Memos and activity inputs repeat names, and must stay under 2 MB."""


class InvocationInput(Recorded):
    """Input of the invocation workflow."""

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
    """Whether workers publish the unfinished text of model calls; see `conversation.partial_text`."""
    root: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Name of the root agent whose tree contains `agent`; set for called agents."""
    depth: int = 0
    """Number of calling agents above this invocation."""
    origin: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """For called agents: id of the topmost invocation, whose artifacts they share."""
    cut_after: int | None = Field(default=None, ge=1)
    """Number of history events after which a run continues as new; None: Waystation decides."""
    carried: JsonObject | None = Field(default=None, repr=False)
    """State of the previous run, a `log.snapshot.Carried`. Only the engine sets it."""
    requester: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Who triggers the invocation, if not `user_id`. Policies may exclude the requester from answering."""
    standing: tuple[StandingApproval, ...] = ()
    """Remembered approvals; accepted only from a parent workflow."""
    session: SessionLink | None = None
    """The session with the earlier messages; accepted only from a parent workflow."""
    fork: Fork | None = None
    """Set if the invocation is a fork."""

    @property
    def family(self) -> str:
        """Id of the invocation whose artifacts it shares; empty when it has its own."""
        return self.origin or (self.fork.home if self.fork else "")

    @property
    def requesters(self) -> tuple[str, ...]:
        """Names of the requester, which `not_requester` excludes from answering."""
        return tuple(name for name in (self.requester, self.user_id) if name)


class InvocationResult(Recorded):
    """The result of an invocation."""

    status: Literal["completed", "stopped"] = "completed"
    reason: str | None = None
    """Why the invocation stopped early."""
    text: str = ""
    content: JsonObject | None = None
    state_delta: JsonObject = Field(default_factory=dict)
    removed_keys: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    spent: Spent | None = None
    """Includes called agents and all attempts."""
    granted: Grant | None = None
    """Amounts that approvers granted beyond the budget."""
    invocation_id: str = ""
    output: JsonObject | None = None
    """The final text as parsed JSON, if the agent has an `output_schema`."""
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    """Saved artifacts with their latest versions."""
    next_agent: str | None = None
    """The agent for the user's next message, if not the agent that was started; see adk-semantics 9.1."""
    report: Report | None = None
    """For the session: the progress since the last report."""
    standing: tuple[StandingApproval, ...] = ()
    """For the calling agent or the session: remembered approvals."""
    omitted: tuple[str, ...] = ()
    """Fields left out because the result would exceed the size of a payload."""

    def encode(self) -> bytes:
        """Return the result as JSON with every contract field present, so that readers need no defaults."""
        return self.__pydantic_serializer__.to_json(self)

    def fitted(self) -> "InvocationResult":
        """Return the result without its largest fields until it fits into a payload. The history has all of them."""
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
"""The server refuses keywords over 2,048 bytes, and a refused upsert blocks the workflow."""


def search_attributes_of(agent: str, user_id: str, session_id: str | None) -> dict[str, str]:
    """Return the search attributes of an invocation or a session that never change."""
    values = {SEARCH_AGENT: agent, SEARCH_USER: user_id, SEARCH_SESSION: session_id}
    return {name: value[:MAX_KEYWORD] for name, value in values.items() if value}


def start_attributes(started: InvocationInput) -> dict[str, str]:
    """Return the search attributes at the start, which make the invocation searchable at once and save an upsert."""
    return {**search_attributes_of(started.agent, started.user_id, started.session_id), SEARCH_STATUS: RUNNING}


def parse_input(data: bytes) -> InvocationInput:
    """Parse the input of an invocation.

    Raises:
        InvalidInput: It is not JSON, or violates the contract. The message repeats no content.
    """
    parsed = parse(
        InvocationInput, data, InvalidInput, what=f"The input of {WORKFLOW}", send="with `agent` and `message`"
    )
    if problem := message_problem(parsed.message):
        raise InvalidInput(f"The message of {WORKFLOW} is invalid: {problem}")
    return parsed
