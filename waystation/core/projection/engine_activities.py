"""A table of the engine's activities, with the input, the result and the log entry of each.

Workflows schedule activities from this table and workers register them. Readers create the same log entries from the
results as workflows do. If a result in a history cannot be read, the activity counts as lost; this is not an error.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from waystation.core.approval import Verification
from waystation.core.contract import (
    InvocationResult,
    ModelCallInput,
    ModelReply,
    Position,
    ToolCallInput,
    ToolOutcome,
    VerificationInput,
)
from waystation.core.log import (
    CANCEL,
    END,
    START,
    AnswerVerified,
    Body,
    CallLost,
    CallRef,
    CallReturned,
    ChildReturned,
    EntryRef,
    Failure,
    ForkRefused,
    Held,
    HoldRef,
    LifecycleRef,
    ModelLost,
    ModelReplied,
    ModelReplyRef,
    NoticeReport,
    NotificationRef,
    Notified,
    NotifyInput,
    OutcomeFound,
    OutcomeRef,
    OutgoingEvent,
    ScopeFlushRef,
    ScopesFlushed,
    VerificationRef,
    responses,
)
from waystation.core.payload import Recorded, decode
from waystation.core.projection.fork import TakenOver
from waystation.core.projection.snapshot import Archived, ArchiveInput, ChildInput, ChildOutcome
from waystation.core.push import PushReport, PushTask
from waystation.core.scope_state import ScopeDelivery, ScopeReport
from waystation.core.session_log import Collected, CollectInput, SessionArchiveInput, StoredTranscript

R = TypeVar("R", bound=Recorded)


@dataclass(frozen=True, kw_only=True)
class ResultKind:
    """Creates a log entry from the result or the failure of an activity or a called agent."""

    result: type[Recorded]
    what: str
    """Name of the result, used in the error message if the result cannot be read."""
    entry: Callable[[Any, Any], Body]
    """Creates the entry from the reference and the result. Raises ValueError if the result is inconsistent."""
    lost: Callable[[Any, Failure], Body]
    """Creates the entry from the reference and the failure."""

    def to_entry(self, ref: EntryRef, result: bytes | Failure) -> Body:
        """Return the entry for a result or a failure. A result that cannot be read counts as a failure."""
        if isinstance(result, Failure):
            return Held(str(ref), result) if result.hold else self.lost(ref, result)
        try:
            return self.entry(ref, self.result.model_validate(decode(result)))
        except ValueError:
            return self.lost(
                ref,
                Failure(kind="error", error_type="EngineFault", message=f"The recorded {self.what} cannot be read."),
            )


@dataclass(frozen=True, kw_only=True)
class EngineActivity(Generic[R]):
    """One of the engine's activities."""

    name: str
    """The activity type. It never changes."""
    input: type[Recorded]
    result: type[R]
    settings: str
    """The field of `WorkflowSettings` that holds the activity's timeouts and retry policy."""
    description: str
    """A description for readers of a history. Names in braces are placeholders for fields of the input."""
    abandoned: bool = False
    """Whether the activity continues when the workflow is canceled."""

    def parse(self, data: bytes) -> R:
        """Parse the activity's result.

        Raises:
            ValueError: The result cannot be read.
        """
        return self.result.model_validate(decode(data))


def _model_reply(ref: ModelReplyRef, reply: ModelReply) -> ModelReplied:
    return ModelReplied(ref.number, reply.restored())


def _tool_outcome(ref: CallRef, outcome: ToolOutcome) -> CallReturned:
    if outcome.function_call_id != ref.function_call_id:
        outcome = outcome.model_copy(update={"function_call_id": ref.function_call_id})
    return CallReturned(outcome, ref.run)


def _child_outcome(ref: CallRef, outcome: ChildOutcome) -> ChildReturned | CallLost:
    if outcome.failure:
        return CallLost(ref.function_call_id, outcome.failure)
    return ChildReturned(ref.function_call_id, InvocationResult.model_validate(outcome.result))


def _found(ref: OutcomeRef, result: InvocationResult) -> OutcomeFound:
    return OutcomeFound(ref.function_call_id, ref.run, result.output)


def _lost_call(ref: CallRef, failure: Failure) -> CallLost:
    # Only model calls report endpoints. The details of an error of the user's code may look like a report.
    return CallLost(ref.function_call_id, failure.model_copy(update={"endpoints": {}}), ref.run)


def _lost_verification(ref: VerificationRef, failure: Failure) -> AnswerVerified:
    why = f": {failure.message}" if failure.message else f" ({failure.error_type or failure.kind})."
    message = f"The answer could not be verified{why} Send it again."
    return AnswerVerified(str(ref.message), Verification(refused="NotAllowed", message=message))


def _notified(ref: NotificationRef, report: NoticeReport) -> Notified:
    return Notified(ref.function_call_id, ref.occasion, report)


TOOL_OUTCOME = ResultKind(result=ToolOutcome, what="outcome of the tool", entry=_tool_outcome, lost=_lost_call)
CHILD_OUTCOME = ResultKind(result=ChildOutcome, what="result of the agent", entry=_child_outcome, lost=_lost_call)
FOUND_OUTCOME = ResultKind(
    result=ChildOutcome,
    what="answer of operators",
    entry=lambda ref, outcome: _found(ref, InvocationResult.model_validate(outcome.result or {})),
    lost=lambda ref, failure: OutcomeFound(ref.function_call_id, ref.run),
)
"""The answer of operators, as an activity reads it that follows the invocation that asks them."""
CHILD_RESULT = ResultKind(
    result=InvocationResult,
    what="result of the agent",
    entry=lambda ref, result: ChildReturned(ref.function_call_id, result),
    lost=_lost_call,
)


def target_entry(ref: CallRef, result: bytes | Failure) -> Body:
    """Return the entry for the JSON that a call's target returned, or for its failure, which never holds the call."""
    if isinstance(result, Failure):
        return _lost_call(ref, result.model_copy(update={"hold": "", "mark": "", "used": None}))
    return CallReturned(responses.of_target(ref.function_call_id, result), ref.run)


_KINDS: dict[type[Any], ResultKind] = {
    ModelReplyRef: ResultKind(
        result=ModelReply,
        what="reply of the model",
        entry=_model_reply,
        lost=lambda ref, failure: ModelLost(ref.number, failure),
    ),
    CallRef: TOOL_OUTCOME,
    OutcomeRef: replace(FOUND_OUTCOME, result=InvocationResult, entry=_found),
    ScopeFlushRef: ResultKind(
        result=ScopeReport,
        what="report on state",
        entry=lambda ref, report: ScopesFlushed(ref.last, report.refused),
        lost=lambda ref, failure: ScopesFlushed(ref.last, failure=failure),
    ),
    VerificationRef: ResultKind(
        result=Verification,
        what="review of the answer",
        entry=lambda ref, verification: AnswerVerified(str(ref.message), verification),
        lost=_lost_verification,
    ),
    NotificationRef: ResultKind(
        result=NoticeReport,
        what="report on a notice",
        entry=_notified,
        lost=lambda ref, failure: _notified(ref, NoticeReport(failed={"": failure.error_type or failure.kind})),
    ),
    LifecycleRef: ResultKind(
        result=TakenOver,
        what="history of the source",
        # A usable result becomes the input of the fork's next run. Only an unusable one creates an entry.
        entry=lambda ref, taken: ForkRefused(Failure(kind="error", error_type="EngineFault")),
        lost=lambda ref, failure: ForkRefused(failure),
    ),
}
"""Result kinds by the type of the reference that identifies the result."""

MODEL = EngineActivity(
    name="call_model",
    description="model call {number} of {agent}",
    input=ModelCallInput,
    result=ModelReply,
    settings="model",
)
# A separate activity type, because workers of older versions do not know holds and would run the tool in each attempt.
HELD_TOOL = EngineActivity(
    name="run_held_tool",
    description="run held call {function_call_id}",
    input=ToolCallInput,
    result=ToolOutcome,
    settings="tool",
)
FLUSH_SCOPES = EngineActivity(
    name="apply_scopes",
    description="flush user: and app: state",
    input=ScopeDelivery,
    result=ScopeReport,
    settings="deliver_scopes",
)
CHILD = EngineActivity(
    name="child_outcome",
    description="wait for the outcome of {workflow_id}",
    input=ChildInput,
    result=ChildOutcome,
    settings="child_outcome",
)
VERIFY = EngineActivity(
    name="review_answer",
    description="verify an answer to {call}",
    input=VerificationInput,
    result=Verification,
    settings="review",
)
# Abandoned on cancellation, because approvers are also notified when an invocation ends.
NOTIFY = EngineActivity(
    name="notify",
    description="notify approvers: {occasion} {function_call_id}",
    input=NotifyInput,
    result=NoticeReport,
    settings="notify",
    abandoned=True,
)
TAKE_OVER = EngineActivity(
    name="take_over",
    description="copy the entries from before the fork",
    input=Position,
    result=TakenOver,
    settings="take_over",
    abandoned=True,
)
ARCHIVE = EngineActivity(
    name="archive",
    description="archive the log",
    input=ArchiveInput,
    result=Archived,
    settings="archive",
    abandoned=True,
)
COLLECT = EngineActivity(
    name="collect",
    description="read the history of invocation {number}",
    input=CollectInput,
    result=Collected,
    settings="collect",
)
ARCHIVE_SESSION = EngineActivity(
    name="archive_session",
    description="archive the session",
    input=SessionArchiveInput,
    result=StoredTranscript,
    settings="archive_session",
)
PUSH = EngineActivity(
    name="push_task",
    description="push the state of a task",
    input=PushTask,
    result=PushReport,
    settings="push",
)
# Not in the table below, because invocations do not schedule it. The same applies to `PUSH`.
DELIVER_EVENT = EngineActivity(
    name="deliver_event",
    description="deliver {event}",
    input=OutgoingEvent,
    result=NoticeReport,
    settings="deliver_event",
)
ENGINE_ACTIVITIES: dict[str, EngineActivity[Any]] = {
    activity.name: activity
    for activity in (
        MODEL,
        HELD_TOOL,
        FLUSH_SCOPES,
        CHILD,
        VERIFY,
        NOTIFY,
        TAKE_OVER,
        ARCHIVE,
        COLLECT,
        ARCHIVE_SESSION,
    )
}
"""The engine's activities by activity type. Every other type belongs to a tool: it is named `<agent>.<tool>` and uses
`ToolCallInput` and `ToolOutcome`."""


def kind_of(ref: EntryRef) -> ResultKind:
    """Return the kind of result that a reference identifies.

    For a call, this is always the kind of a tool's result, even if the call runs an agent.

    Raises:
        ValueError: The reference does not identify a result.
    """
    kind = None if ref in (START, CANCEL, END) else _KINDS.get(type(ref))
    if kind is None:
        raise ValueError(f"{str(ref)!r} is not a reference to a result.")
    return kind


def with_attempt(ref: EntryRef, body: Body) -> EntryRef:
    """Return the reference to a result, with the attempt that produced it added if the entry records one.

    For a verification, also add whether the answer was refused.

    A worker process caches the results that it produced. Because references include the attempt, the process never uses
    a cached result in place of a different attempt's result.
    """
    match ref, body:
        case _, Held():
            return HoldRef(body.activity_id, body.failure.mark)
        case ModelReplyRef(), ModelReplied():
            return replace(ref, attempt=body.reply.mark)
        case CallRef(), CallReturned():
            return replace(ref, attempt=body.outcome.mark)
        case VerificationRef(), AnswerVerified():
            return replace(ref, attempt=body.review.mark, refused=body.refused is not None)
        case NotificationRef(), Notified():
            return replace(ref, attempt=body.report.mark)
        case _:
            return ref
