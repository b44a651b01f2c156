"""As what the payloads of a history were recorded."""

from typing import Any

from waystation.core.answer import Action, Answer, PendingCall
from waystation.core.continued import Archived, ArchiveInput, ChildInput, ChildOutcome
from waystation.core.entry import MessageJoined
from waystation.core.fork import TAKE_OVER_ACTIVITY, TakenOver
from waystation.core.lineage import Fork
from waystation.core.model_call import ModelCallInput, ModelReply, Position
from waystation.core.notice import NOTIFY_ACTIVITY, NoticeReport, NotifyInput
from waystation.core.payload import Recorded
from waystation.core.review import REVIEW_ACTIVITY, Review, ReviewInput
from waystation.core.scope import APPLY_SIGNAL, DELIVERY_ACTIVITY, ScopeDelivery, ScopeDelta, ScopeReport, ScopeSnapshot
from waystation.core.scope import WORKFLOW as SCOPE_WORKFLOW
from waystation.core.session_data import (
    Collected,
    CollectInput,
    KeptTranscript,
    SessionArchiveInput,
    SessionInput,
    SessionMessage,
)
from waystation.core.wire import (
    ANSWER_SIGNAL,
    ANSWER_UPDATE,
    ARCHIVE_ACTIVITY,
    CHILD_ACTIVITY,
    CHILD_ENDED_SIGNAL,
    CLOSE,
    COLLECT_ACTIVITY,
    MEMO_FORK,
    MEMO_PENDING,
    MEMO_SESSION,
    MESSAGE_SIGNAL,
    MODEL_ACTIVITY,
    PARKED_SIGNAL,
    SEND,
    SESSION_ARCHIVE_ACTIVITY,
    SESSION_WORKFLOW,
    WORKFLOW,
    InvocationInput,
    InvocationResult,
)

ACTIVITIES: dict[str, tuple[Any, Any]] = {
    MODEL_ACTIVITY: (ModelCallInput, ModelReply),
    ARCHIVE_ACTIVITY: (ArchiveInput, Archived),
    TAKE_OVER_ACTIVITY: (Position, TakenOver),
    CHILD_ACTIVITY: (ChildInput, ChildOutcome),
    REVIEW_ACTIVITY: (ReviewInput, Review),
    NOTIFY_ACTIVITY: (NotifyInput, NoticeReport),
    DELIVERY_ACTIVITY: (ScopeDelivery, ScopeReport),
    COLLECT_ACTIVITY: (CollectInput, Collected),
    SESSION_ARCHIVE_ACTIVITY: (SessionArchiveInput, KeptTranscript),
}


class Receipt(Recorded):
    """What `submit_answer` returns, and what `send` does."""

    invocation_id: str = ""
    status: str = ""
    function_call_id: str = ""
    tool: str = ""
    action: Action = "approve"
    approved_by: tuple[str, ...] = ()
    digest: str = ""


class About(Recorded):
    """What the memo says of a session."""

    agent: str = ""
    app: str = ""
    user_id: str = ""
    session_id: str = ""
    status: str = ""


STARTED = {WORKFLOW: InvocationInput, SESSION_WORKFLOW: SessionInput, SCOPE_WORKFLOW: ScopeSnapshot}
ENDED = {WORKFLOW: InvocationResult, SESSION_WORKFLOW: About}
MESSAGES: dict[str, Any] = {
    ANSWER_SIGNAL: Answer,
    ANSWER_UPDATE: Answer,
    MESSAGE_SIGNAL: MessageJoined,
    SEND: SessionMessage,
    APPLY_SIGNAL: ScopeDelta,
    CLOSE: None,
    PARKED_SIGNAL: None,
    CHILD_ENDED_SIGNAL: None,
}
MEMOS: dict[str, Any] = {MEMO_PENDING: [PendingCall], MEMO_SESSION: About, MEMO_FORK: Fork}
