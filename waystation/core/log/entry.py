"""The entries of a log: one class for each kind of fact about an invocation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from waystation.core.approval import Answer, Verification
from waystation.core.budget import Used
from waystation.core.contract import MAX_REQUESTER_CHARS, InvocationInput, InvocationResult, ModelReply, ToolOutcome
from waystation.core.log.entry_ref import EntryRef
from waystation.core.log.notification import NoticeReport
from waystation.core.payload import JsonObject, Recorded
from waystation.core.scope_state import RefusedDelta

FailureKind = Literal["error", "start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat", "cancelled"]

HoldReason = Literal[
    "agent_missing",
    "tool_missing",
    "toolset_failed",
    "store_failed",
    "model_unavailable",
    "identity_unavailable",
    "rate_limited",
    "budget_exhausted",
    "worker_stopped",
]
"""Why an invocation is held. Other programs depend on these values."""

EndStatus = Literal["completed", "failed", "cancelled", "terminated", "timed_out", "continued"]
"""How a run ended. `continued` ends the run but not the invocation."""


Endpoints: TypeAlias = dict[str, tuple[str, ...]]
"""The names of the endpoints that receive the events of an invocation, by event."""
_ENDPOINTS: Final = TypeAdapter(Endpoints)


class Failure(Recorded):
    """Why an activity or a called agent has no result, or why an invocation failed."""

    kind: FailureKind
    error_type: str = ""
    message: str = ""
    used: Used | None = None
    """Usage that a called agent reported when it failed, if any."""
    attempts: int = 1
    """How often a tool call was tried if it failed because no attempts were left; otherwise 1."""
    hold: str = ""
    """Why no worker that tried could do the work, as a `HoldReason`. Empty if the failure is final."""
    mark: str = ""
    """A value that distinguishes the attempts at held work."""
    endpoints: Endpoints = Field(default_factory=dict)
    """For a model call: the endpoints that receive the invocation's events."""
    started: bool = False
    """Whether the tool of a held call had started before the call ran out of time. Its last heartbeat then had details.
    """


def parse_details(details: Sequence[Any], *, is_over: bool) -> JsonObject:
    """Return the `Failure` fields that the details of an activity's error contain: endpoints, and those of a hold.

    `is_over` is whether no time is left for further attempts. A failure of held work then counts as a timeout.
    """
    hold = _parse_hold(details, is_over=is_over)
    try:
        return {"endpoints": _ENDPOINTS.validate_python(details[-1]["endpoints"]), **hold}
    except (LookupError, TypeError, ValueError):  # an activity of the user may have details of any form
        return hold


def _parse_hold(details: Sequence[Any], *, is_over: bool) -> JsonObject:
    match details:
        case [{"hold": str(), "mark": str(), "started": bool(started)}, *_] if is_over:
            return {"kind": "schedule_to_close", "started": started}
        case [{"hold": str(hold), "mark": str(mark)}, *_] if mark.isalnum():
            return {"hold": hold, "mark": mark}
        case _:
            return {}


@dataclass(frozen=True, slots=True)
class Began:
    """Entry: the invocation was started with this input."""

    input: InvocationInput


@dataclass(frozen=True, slots=True)
class Refused:
    """Entry: the invocation was started with an invalid input."""

    message: str


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """Entry: a model activity was scheduled. Its prompt is built from all earlier entries."""

    number: int
    turn: int = 0
    """Index of the agent run."""
    wrap_up: bool = False
    """Whether the model is asked to wrap up."""


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """Entry: a model activity returned a reply."""

    number: int
    reply: ModelReply


@dataclass(frozen=True, slots=True)
class ModelLost:
    """Entry: all attempts at a model call failed."""

    number: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class CallReturned:
    """Entry: a tool returned."""

    outcome: ToolOutcome
    run: int = 0
    """Number of the run that returned, starting at 0. A call can run more than once."""


@dataclass(frozen=True, slots=True)
class ChildReturned:
    """Entry: a called agent finished."""

    function_call_id: str
    result: InvocationResult


@dataclass(frozen=True, slots=True)
class CallLost:
    """Entry: a tool or a called agent has no usable result, for example because it timed out or was canceled."""

    function_call_id: str
    failure: Failure
    run: int = 0


@dataclass(frozen=True, slots=True)
class AnswerCounted:
    """Entry: an answer to a pending call was accepted."""

    function_call_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class AnswerIgnored:
    """Entry: a message arrived but was ignored."""

    reason: str
    """Name of the `AnswerRefused` subclass, or `NotInStore` if the message could not be read."""
    message: str
    function_call_id: str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class VerificationRequested:
    """Entry: an answer to a pending call arrived and must be verified before it counts."""

    function_call_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class AnswerVerified:
    """Entry: the verification of a submitted answer finished."""

    ref: str
    """Reference, without its verdict, to the signal or update that contains the answer."""
    review: Verification
    refused: AnswerIgnored | None = None
    """Why the answer does not count, or None if it counts."""


@dataclass(frozen=True, slots=True)
class MessageJoined:
    """Entry: another message from the user arrived while the invocation was running."""

    message: str | JsonObject
    join: int | None = None
    """The session's number for the message."""
    token: str | None = field(default=None, repr=False)
    """Proof of the sender's identity, encrypted for the workers."""
    message_id: str | None = None
    """ID of the message, if the message has a token."""
    requester: Annotated[str | None, Field(max_length=MAX_REQUESTER_CHARS)] = None
    """The person or program that sent the message, if not the session's user."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Entry: the deadline of a pending call passed."""

    function_call_id: str


@dataclass(frozen=True, slots=True)
class ReminderDue:
    """Entry: a reminder or an escalation for an unanswered call is due."""

    function_call_id: str
    number: int
    """Index into the policy's reminders and escalations, ordered by time."""


@dataclass(frozen=True, slots=True)
class Notified:
    """Entry: an attempt to notify approvers of a call ended. The report contains any failures."""

    function_call_id: str
    occasion: str
    report: NoticeReport


@dataclass(frozen=True, slots=True)
class ScopesFlushed:
    """Entry: writes to `user:` and `app:` state were delivered, or their delivery failed."""

    last: int
    """Number of the last event whose writes this delivery included."""
    refused: tuple[RefusedDelta, ...] = ()
    failure: Failure | None = None
    """The failure, if it is unknown whether the writes were delivered."""


@dataclass(frozen=True, slots=True)
class OutcomeFound:
    """Entry: operators stated whether a call with an unknown outcome took effect, or can no longer be asked."""

    function_call_id: str
    run: int = 0
    """Number of the run whose outcome was unknown."""
    answer: JsonObject | None = None
    """The `output` of the invocation that asked them; see `unknown_outcomes`. None if there is no answer."""


@dataclass(frozen=True, slots=True)
class ForkRefused:
    """Entry: a fork could not inherit the entries of its source."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Held:
    """Entry: a model call or a tool call is held, because no worker that tried it can do it at the moment."""

    activity_id: str
    failure: Failure
    """The failure of the last attempt. `hold` is the reason."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Entry: an operator gave up the held calls. Each of them fails with the reason why it was held."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Entry: cancellation of the invocation was requested."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Entry: the invocation ended. Calls that are still open at this point never get an answer."""

    status: EndStatus


Body: TypeAlias = (
    Began
    | Refused
    | ModelCalled
    | ModelReplied
    | ModelLost
    | CallReturned
    | ChildReturned
    | CallLost
    | AnswerCounted
    | AnswerIgnored
    | VerificationRequested
    | AnswerVerified
    | MessageJoined
    | DeadlinePassed
    | ReminderDue
    | Notified
    | ScopesFlushed
    | OutcomeFound
    | ForkRefused
    | Held
    | GivenUp
    | CancelRequested
    | Ended
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log."""

    ref: EntryRef
    """Identifies the origin of the entry in the history."""
    time: float
    """When the workflow applied the entry, in seconds since 1970 according to the workflow's clock."""
    body: Body
