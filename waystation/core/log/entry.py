"""The entries of a log: everything that can happen to an invocation."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from waystation.core.activity_io import ModelReply, ToolOutcome
from waystation.core.approval.answer import Answer, Review
from waystation.core.approval.notification import NoticeReport
from waystation.core.budget import Used
from waystation.core.log.entry_ref import EntryRef
from waystation.core.payload import JsonObject, Recorded
from waystation.core.scope import RefusedDelta
from waystation.core.wire import InvocationInput, InvocationResult

FailureKind = Literal["error", "start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat", "cancelled"]

EndStatus = Literal["completed", "failed", "cancelled", "terminated", "timed_out", "continued"]
"""`continued` ends a run, not the invocation."""


class Failure(Recorded):
    """Why an activity or a child gave no result."""

    kind: FailureKind
    error_type: str = ""
    message: str = ""
    used: Used | None = None
    """What a called agent says that it used."""


@dataclass(frozen=True, slots=True)
class Began:
    """The invocation was started."""

    input: InvocationInput


@dataclass(frozen=True, slots=True)
class Refused:
    """The invocation was started with something that is no input."""

    message: str


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """A model activity was scheduled with all that the log held by then."""

    number: int
    turn: int = 0
    """For which of the agents at work."""
    wrap_up: bool = False
    """Whether the model is told to wrap up."""


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """The model answered."""

    number: int
    reply: ModelReply


@dataclass(frozen=True, slots=True)
class ModelLost:
    """The model gave no answer within all attempts."""

    number: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class CallReturned:
    """A tool ran and reported."""

    outcome: ToolOutcome
    run: int = 0
    """Which run of the call reports."""


@dataclass(frozen=True, slots=True)
class ChildReturned:
    """An agent that was called as a tool finished."""

    function_call_id: str
    result: InvocationResult


@dataclass(frozen=True, slots=True)
class CallLost:
    """A tool or a child gave no report: its worker was lost, its time was up, or it was cancelled."""

    function_call_id: str
    failure: Failure
    run: int = 0


@dataclass(frozen=True, slots=True)
class AnswerCounted:
    """Somebody answered a call that waited, and it counts."""

    function_call_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class AnswerIgnored:
    """Something arrived that does not count."""

    reason: str
    """Name of the `AnswerRefused` class; `NotInStore` when it could not be read."""
    message: str
    function_call_id: str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerSubmitted:
    """Somebody answered a call, and whether that counts has to be looked into."""

    function_call_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class AnswerReviewed:
    """A submitted answer was looked into."""

    ref: str
    """Of the signal or update that brought it, without judgement."""
    review: Review
    refused: AnswerIgnored | None = None
    """Why it does not count, when it does not."""


@dataclass(frozen=True, slots=True)
class MessageJoined:
    """The user said more while the agent worked."""

    message: str | JsonObject
    join: int | None = None
    """Number that the session gave it."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Nobody answered a call in time."""

    function_call_id: str


@dataclass(frozen=True, slots=True)
class NoticeDue:
    """Nobody has answered a call for as long as its policy has people reminded, or further people asked."""

    function_call_id: str
    number: int
    """Which of the reminders and escalations of the policy, from 0, in the order of their times."""


@dataclass(frozen=True, slots=True)
class Notified:
    """People were told of a call that waits, or waited."""

    function_call_id: str
    occasion: str
    report: NoticeReport


@dataclass(frozen=True, slots=True)
class ScopesTold:
    """What events wrote to `user:` and `app:` state was delivered there, as far as that could be done."""

    last: int
    """Number of the last event concerned."""
    refused: tuple[RefusedDelta, ...] = ()
    failure: Failure | None = None
    """Why nobody knows whether it was delivered."""


@dataclass(frozen=True, slots=True)
class ForkRefused:
    """What the invocation was to take over of another one is not to be had."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked to cancel the invocation."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The invocation is over; what is still open never gets an answer."""

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
    | AnswerSubmitted
    | AnswerReviewed
    | MessageJoined
    | DeadlinePassed
    | NoticeDue
    | Notified
    | ScopesTold
    | ForkRefused
    | CancelRequested
    | Ended
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log."""

    ref: EntryRef
    """Where in the history it originated."""
    time: float
    """When the workflow applied it: seconds since 1970, by the workflow's clock."""
    body: Body
