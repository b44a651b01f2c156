"""The wire contract: names and payloads that other programs depend on.

Existing payloads only ever gain optional fields. Any other change gets a new name, and the old name stays.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from waystation.core import ids
from waystation.core.approval import ApprovalPolicy, RememberedApproval, Request, SignedRequest
from waystation.core.budget import NO_USAGE, Budget, Grant, Spent, Usage
from waystation.core.contract.activity_io import Target
from waystation.core.contract.event import message_problem
from waystation.core.contract.partial_text import TextInterval
from waystation.core.contract.settings import MIN_HEARTBEAT_INTERVAL
from waystation.core.errors import InvalidInput
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, Recorded, copy_json, encode, parse

MAX_TEXT = 100_000


class Fork(Recorded):
    """The source of a fork, and what the fork changes."""

    invocation_id: str = Field(min_length=1, max_length=1_000)
    """ID of the source invocation."""
    event: int = Field(ge=1)
    """Number of the last event that the fork inherits."""
    run_id: str = Field(default="", max_length=100)
    """Run ID of the source invocation. If empty, the latest run is the source."""
    results: dict[str, JsonObject] = Field(default_factory=dict)
    """Responses to use instead of running the calls, keyed by function call ID."""
    agent: str | None = Field(default=None, max_length=1_000)
    """The agent to which the `instruction` and `model` of the fork apply. Defaults to the agent that was started."""
    instruction: str | None = Field(default=None, max_length=MAX_TEXT, repr=False)
    model: str | None = Field(default=None, max_length=1_000)
    home: str = Field(default="", max_length=1_000)
    """For a fork outside a session: ID of the invocation whose artifacts the fork shares. Only the engine sets this
    field.
    """
    entries: int = 0
    """Number of log entries that the fork inherits. Only the engine sets this field."""

    def memo(self) -> JsonObject:
        """Return the fork's memo."""
        return {"invocation_id": self.invocation_id, "event": self.event}


MAX_REPORT_BYTES = 100_000
"""Maximum size of the log entries in an invocation's report to its session. If they are larger, the report omits them,
and the session reads them from the history."""
FOREIGN_PREFIXES = ("temp:", "user:", "app:")
"""Prefixes of state keys that do not belong to the session."""


class SessionLink(Recorded):
    """The session that an invocation belongs to, and the reports that preceded the invocation."""

    id: str = Field(default="", max_length=1_000)
    """Workflow ID of the session. Empty in the input of a child workflow, because the session is its parent."""
    run_id: str = ""
    """ID of the session run that started the invocation. Empty in the input of a child workflow, like `id`."""
    number: int
    """Number of the invocation in the session, starting at 1."""
    reports: tuple[str, ...] = ()
    """References to the reports that the session has applied, in order, since it started the previous invocation (see
    `ids.report`)."""
    message_id: str | None = None
    """ID of the message, if the message has a token or was sent to join an invocation, which it may have missed."""


class InvocationReport(Recorded):
    """The progress of an invocation since its last report to the session."""

    since: int
    """Length of the invocation's log at the last report."""
    entries: tuple[JsonObject, ...] | None = None
    """The new entries in the format of `log.snapshot.entries_to_json`, or None if they are too large to include."""
    state_delta: JsonObject = Field(default_factory=dict)
    """Values that the invocation has set in the session's state since its last report."""
    removed_keys: tuple[str, ...] = ()
    joined: tuple[int, ...] = ()
    """Numbers of the joined messages that the invocation has received."""
    standing: tuple[RememberedApproval, ...] = ()
    """The invocation's remembered approvals, including those with which it started."""
    search_attributes: bool = False
    """Whether the invocation found out that Waystation's search attributes are registered."""


def session_part(state: Mapping[str, object]) -> JsonObject:
    """Return the part of a state that belongs to the session, without `temp:`, `user:` and `app:` keys."""
    return {key: value for key, value in state.items() if not key.startswith(FOREIGN_PREFIXES)}


def diff_state(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[JsonObject, tuple[str, ...]]:
    """Return the new or changed values and the removed keys in the session's part of a state."""
    delta = {key: value for key, value in session_part(after).items() if key not in before or before[key] != value}
    return delta, tuple(key for key in session_part(before) if key not in after)


TASK_QUEUE = "waystation"
TASK_TIMEOUT = timedelta(seconds=5)
"""Workflow task timeout of all workflows that Waystation starts: how long a workflow waits for a worker that was killed
while it processed one of its workflow tasks. From the fourth attempt at a task, the server allows more time."""
WORKFLOW = "AgentInvocation"
ANSWER_SIGNAL = "answer"
ANSWER_UPDATE = "submit_answer"
SESSION_WORKFLOW = "AgentSession"
EVENT_WORKFLOW = "AgentEventDelivery"
SEND = "send"
"""Signal and update that send a message to a session."""
CHANGE_STATE = "change_state"
"""Signal that changes a session's state."""
CLOSE = "close"
"""Signal and update that close a session."""
MESSAGE_SIGNAL = "message"
"""Signal from a session that delivers another message to a running invocation."""
GIVE_UP_SIGNAL = "give_up"
"""Signal to an invocation: fail its held calls instead of waiting any longer. It takes no arguments."""
PARKED_SIGNAL = "parked"
"""Signal from an invocation to its session: the invocation is waiting for an approver."""
CHILD_ENDED_SIGNAL = "child_ended"
"""Signal from an invocation to a session that is no longer its parent: the invocation has ended."""

SEARCH_AGENT = "WaystationAgent"
SEARCH_SESSION = "WaystationSession"
SEARCH_USER = "WaystationUser"
SEARCH_STATUS = "WaystationStatus"
SEARCH_PENDING = "WaystationPending"
SEARCH_TENANT = "WaystationTenant"
"""Set only on invocations and sessions of a tenant. All others also work in a namespace without this attribute."""
SEARCH_ATTRIBUTES = {
    SEARCH_AGENT: "Keyword",
    SEARCH_SESSION: "Keyword",
    SEARCH_USER: "Keyword",
    SEARCH_STATUS: "Keyword",
    SEARCH_PENDING: "KeywordList",
    SEARCH_TENANT: "Keyword",
}
MEMO_PENDING = "waystation_pending"
MEMO_HELD = "waystation_held"
MAX_MEMO_CALLS = 50
"""Maximum number of calls in each of these memo fields. The history has all calls."""
"""Memo field of an invocation that lists its held calls, each with the reason."""
MEMO_FILLER = "waystation_filler"
"""A key that is only ever removed, to give a workflow task an event."""
MEMO_SESSION = "waystation_session"
MEMO_TENANT = "waystation_tenant"
"""Memo field of a workflow that runs as a tool: the tenant of the agent that called it. `run_agent` reads it."""
MEMO_FORK = "waystation_fork"
"""Memo field of a fork that names the source invocation and the event."""

DEFAULT_APP = "waystation"
DEFAULT_USER = "user"
MAX_NAME_CHARS = 1_000
"""Maximum length of each name in an input, which is also the server's limit for workflow IDs. Memos and activity inputs
repeat these names and must stay under 2 MB."""
MAX_REQUESTER_CHARS = 300
"""Maximum length of the requester of a message. It is also that of a verified subject."""
AppName: TypeAlias = Annotated[str, Field(max_length=MAX_NAME_CHARS), AfterValidator(ids.check_app)]
TenantName: TypeAlias = Annotated[str, Field(pattern=f"^{ids.TENANT}$")]


def streaming_fields(streaming: bool | timedelta) -> JsonObject:
    """Return the fields of an input that stand for `streaming`, which may be the interval between pieces of text.

    Raises:
        InvalidInput: The interval is too short.
    """
    if not isinstance(streaming, timedelta):
        return {"streaming": streaming}
    if streaming < MIN_HEARTBEAT_INTERVAL:
        least = MIN_HEARTBEAT_INTERVAL.total_seconds()
        raise InvalidInput(f"The interval of `streaming` is {streaming.total_seconds():g} s; use at least {least:g} s.")
    return {"streaming": True, "text_interval_s": streaming.total_seconds()}


class UnknownOutcome(Recorded):
    """A call of the parent workflow about which an invocation asks operators, because its outcome is unknown."""

    function_call_id: str
    tool: str
    args: JsonObject
    policy: ApprovalPolicy
    """The people who may answer."""
    declared: str
    tool_origin: str | None = None
    title: str | None = None
    target: Target | None = None
    """The user's code that runs for the call, whose ID allows no second run."""


class InvocationInput(Recorded):
    """Input of the invocation workflow."""

    agent: str = Field(max_length=MAX_NAME_CHARS)
    message: str | JsonObject
    """The user's message: text, or a genai `Content` as JSON."""
    state: JsonObject = Field(default_factory=dict)
    user_id: str = Field(default=DEFAULT_USER, max_length=MAX_NAME_CHARS)
    session_id: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    app: AppName = DEFAULT_APP
    budget: Budget = Field(default_factory=Budget)
    metadata: JsonObject = Field(default_factory=dict)
    streaming: bool = False
    """Whether workers publish the partial text of model replies (see `conversation.partial_text`)."""
    text_interval_s: TextInterval | None = None
    """Minimum interval between pieces of partial text, or None for the worker's."""
    root: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Name of the root agent whose tree contains `agent`, if `agent` itself is not the root."""
    depth: int = 0
    """Number of agents in the chain of calls that led to this invocation. 0 if no agent called it."""
    origin: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """For a called agent, the ID of the topmost invocation. All called agents share its artifacts."""
    cut_after: int | None = Field(default=None, ge=1)
    """Number of history events at which a run continues as new. If None, Waystation's own limits apply."""
    carried: JsonObject | None = Field(default=None, repr=False)
    """State of the previous run, a `log.snapshot.Carried`. Only the engine sets this field."""
    requester: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The person who triggers the invocation, if not `user_id`. A policy with `not_requester` bars both from
    answering."""
    joined_requesters: tuple[str, ...] = ()
    """For a called agent: the requesters of messages that joined its callers. Accepted only from a parent workflow."""
    standing: tuple[RememberedApproval, ...] = ()
    """Remembered approvals. Accepted only from a parent workflow."""
    session: SessionLink | None = None
    """The session that holds the earlier messages. Accepted only from a parent workflow."""
    fork: Fork | None = None
    """The source of the fork, or None if the invocation is not a fork."""
    token: str | None = Field(default=None, repr=False)
    """Proof of the requester's identity, encrypted for the workers."""
    signed_request: SignedRequest | None = None
    """The verified requesters of a called agent or a fork. Accepted only from a parent workflow."""
    schedule: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """ID of the schedule for which `token` was made, or None if it was made for this invocation."""
    unknown: UnknownOutcome | None = None
    """The call about which this invocation only asks operators. Accepted only from a parent workflow."""
    tenant: TenantName | None = None
    """The tenant that the invocation works for, or None. Invocations of different tenants share no data."""
    traceparent: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The caller's span in the format of W3C Trace Context, or None if the caller has no trace."""

    @property
    def app_key(self) -> str:
        """The key that separates the app's data from that of other apps and tenants."""
        return ids.app_key(self.app, self.tenant)

    @property
    def family(self) -> str:
        """ID of the invocation whose artifacts this one shares, or an empty string if it has its own."""
        return self.origin or (self.fork.home if self.fork else "")

    @property
    def requesters(self) -> tuple[str, ...]:
        """The `requester`, if set, and the `user_id`. A policy with `not_requester` bars both from answering."""
        return tuple(name for name in (self.requester, self.user_id) if name)

    def for_child(self) -> "InvocationInput":
        """Return the input for an invocation of a session, without what follows from its parent workflow."""
        if self.session is None:
            return self
        link = self.session.model_copy(update={"id": "", "run_id": ""})
        return self.model_copy(update={"session": link, "session_id": None})

    def from_parent(self, parent: str, run_id: str) -> "InvocationInput":
        """Return the input with what `for_child` leaves out. `parent` and `run_id` identify the parent workflow."""
        if not parent or self.session is None or self.session.id:
            return self
        link = self.session.model_copy(update={"id": parent, "run_id": run_id})
        return self.model_copy(update={"session": link, "session_id": ids.session_name(parent)})

    def request(self) -> Request:
        """Return what the token is bound to: all fields that a client sets or, in a session, only the message."""
        if self.session:
            return message_request(self.message, self.session.message_id)
        engine_fields = {"token", "signed_request", "standing", "session", "carried", "traceparent", "unknown"}
        engine_fields |= {"joined_requesters"}
        content = self.model_dump(mode="json", exclude_defaults=True, exclude=engine_fields)
        return Request(content=content, lasting=self.schedule is not None)

    def receiver(self, invocation_id: str) -> str:
        """Return the ID for which the token of an invocation with this input must have been made.

        A schedule starts invocations whose IDs are its own followed by the time.
        """
        if self.fork:
            return invocation_id
        if self.session:
            return self.session.id
        is_scheduled = self.schedule is not None and invocation_id.startswith(f"{self.schedule}-")
        return self.schedule if is_scheduled and self.schedule else invocation_id


def message_request(message: str | JsonObject, message_id: str | None) -> Request:
    """Return what the token of a message to a session is bound to."""
    return Request(content={"message": message, "message_id": message_id})


class InvocationResult(Recorded):
    """The result of an invocation."""

    status: Literal["completed", "stopped"] = "completed"
    reason: str | None = None
    """Why the invocation stopped early, or None if it completed."""
    text: str = ""
    content: JsonObject | None = None
    state_delta: JsonObject = Field(default_factory=dict)
    removed_keys: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    spent: Spent | None = None
    """Total usage, including called agents and all attempts."""
    granted: Grant | None = None
    """Amounts that approvers granted beyond the budget."""
    invocation_id: str = ""
    output: JsonObject | None = None
    """The final text as parsed JSON, if the agent has an `output_schema`."""
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    """Names of the saved artifacts, each with its latest version."""
    next_agent: str | None = None
    """The agent that handles the user's next message, or None if it is the agent that was started."""
    report: InvocationReport | None = None
    """The invocation's progress since its last report, for its session. None outside a session."""
    standing: tuple[RememberedApproval, ...] = ()
    """Remembered approvals, for the calling agent or the session."""
    omitted: tuple[str, ...] = ()
    """Names of the fields left out because the result would be too large for a payload."""

    @model_validator(mode="before")
    @classmethod
    def _restore(cls, data: Any) -> Any:
        """Restore what `encode` leaves out. Results of earlier versions contain all fields."""
        if not isinstance(data, dict):
            return data
        if data.get("content") is None and data.get("text") and "content" not in data.get("omitted", ()):
            data = data | {"content": _plain_reply(data["text"])}
        if isinstance(data.get("report"), dict):
            report = copy_json(data["report"])
            replies = (reply for reply in _replies(report) if reply.get("content") is True)
            for copies, name in ((report, "state_delta"), (report, "standing"), (next(replies, {}), "content")):
                if copies.get(name) is True:
                    copies[name] = data.get(name)
            data = data | {"report": report}
        return data

    def encode(self) -> bytes:
        """Return the result as JSON with `status`, `text` and the fields that differ from their defaults.

        The `content` is left out if it contains only the text. The `invocation_id` is left out because it is the
        workflow ID. In the report, values that the result itself contains are replaced with `true`.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude={"invocation_id"})
        report = fields.get("report", {})
        replies = (reply for reply in _replies(report) if self.content and reply.get("content") == self.content)
        for copies, name in ((report, "state_delta"), (report, "standing"), (next(replies, {}), "content")):
            if copies.get(name) and copies[name] == fields.get(name):
                copies[name] = True
        if self.text and self.content == _plain_reply(self.text):
            del fields["content"]
        return encode({"status": self.status, "text": self.text} | fields)

    def fitted(self) -> "InvocationResult":
        """Return the result without its large fields, as far as necessary to fit in a payload.

        The omitted fields are listed in `omitted`. Their content remains in the history.
        """
        result = self
        for name, empty in (("report", None), ("content", None), ("state_delta", {}), ("output", None), ("text", "")):
            if len(result.encode()) <= MAX_VALUE_BYTES:
                break
            if getattr(result, name) == empty:
                continue
            result = result.model_copy(update={name: empty, "omitted": (*result.omitted, name)})
        return result


def _plain_reply(text: str) -> JsonObject:
    """Return the content of a reply that consists only of text."""
    return {"role": "model", "parts": [{"text": text}]}


def _replies(report: JsonObject) -> Iterator[JsonObject]:
    """Yield the model replies in a recorded report, latest first."""
    for entry in reversed(report.get("entries") or ()):
        if isinstance(reply := entry.get("body", {}).get("reply"), dict):
            yield reply


RUNNING = "running"
UNKNOWN = "unknown"
"""The status of an invocation that asks operators whether a call took effect."""
HELD = "held"
"""Prefix of the status of a held invocation. A colon and the reason follow."""
MAX_KEYWORD = 200
"""Maximum length of a search attribute's value. Longer values are cut, because the server rejects keywords over 2,048
bytes, and a rejected upsert blocks the workflow."""


def parse_input(data: bytes) -> InvocationInput:
    """Parse the input of an invocation.

    Raises:
        InvalidInput: The data is not JSON or violates the contract. The error message does not repeat the data.
    """
    parsed = parse(
        InvocationInput, data, InvalidInput, what=f"The input of {WORKFLOW}", send="with `agent` and `message`"
    )
    if problem := message_problem(parsed.message):
        raise InvalidInput(f"The message of {WORKFLOW} is invalid: {problem}")
    return parsed
