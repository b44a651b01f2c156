"""References to log entries. A reference identifies the origin of an entry in the history.

Commands list references to the entries that were applied before them, but not the content of those entries. If an
entry records the result of an activity, the reference to it, without the attempt and the verdict, is the activity ID.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class LifecycleRef:
    """Reference to the entry for the input, a cancellation request, the end, or the result of reading a fork source."""

    name: Literal["start", "cancel", "end", "fork"]

    def __str__(self) -> str:
        return self.name


START, CANCEL, END, FORK = (LifecycleRef(name) for name in ("start", "cancel", "end", "fork"))


@dataclass(frozen=True, slots=True)
class ModelCallRef:
    """Reference to the entry that records the scheduling of a model activity."""

    number: int
    turn: int = 0
    """Index of the agent run."""
    wrap_up: bool = False

    def __str__(self) -> str:
        return f">{self.number}{f'@{self.turn}' if self.turn else ''}{'^' if self.wrap_up else ''}"


@dataclass(frozen=True, slots=True)
class ModelReplyRef:
    """Reference to the entry that records the result of a model activity."""

    number: int
    attempt: str = ""
    """Mark of the attempt that produced the result, here and in the classes below. Empty in an activity ID."""

    def __str__(self) -> str:
        return _join(f"m{self.number}", self.attempt)


@dataclass(frozen=True, slots=True)
class CallRef:
    """Reference to the entry that records the result of a tool activity or of a called agent."""

    function_call_id: str
    run: int = 0
    """Number of times that the call had already returned before this result."""
    attempt: str = ""

    def __str__(self) -> str:
        return _join(f"{self.function_call_id}~{self.run}" if self.run else self.function_call_id, self.attempt)


@dataclass(frozen=True, slots=True)
class MessageRef:
    """Reference to the entry for a signal or an accepted update.

    Signals and updates are numbered separately, in order of arrival.
    """

    channel: Literal["s", "u"]
    number: int
    verdict: Literal["", "!", "?"] = ""
    """`!` means that the message was ignored. `?` means that its answer must be verified before it counts. Empty if
    the message was accepted or has not been decided on yet."""
    digest: str = ""
    """Digest of an update's answer that counted at once, or empty. If a workflow task is lost, its updates may arrive
    again in a different order."""

    def __str__(self) -> str:
        return _join(f"{self.channel}{self.number}", self.digest) + self.verdict


@dataclass(frozen=True, slots=True)
class VerificationRef:
    """Reference to the entry that records the result of verifying the answer in a message."""

    message: MessageRef
    attempt: str = ""
    refused: bool = False

    def __str__(self) -> str:
        return _join(f"r:{self.message}", self.attempt) + ("!" if self.refused else "")


@dataclass(frozen=True, slots=True)
class DeadlineRef:
    """Reference to the entry that records that a call's deadline passed without an answer."""

    function_call_id: str

    def __str__(self) -> str:
        return f"x:{self.function_call_id}"


@dataclass(frozen=True, slots=True)
class ReminderRef:
    """Reference to the entry that records that a reminder or an escalation is due."""

    function_call_id: str
    wait: int
    """Number of the call's wait for an answer. A call can wait more than once."""
    number: int

    def __str__(self) -> str:
        return f"n:{self.function_call_id}.{self.wait}.{self.number}"


@dataclass(frozen=True, slots=True)
class NotificationRef:
    """Reference to the entry that records the result of notifying approvers."""

    function_call_id: str
    wait: int
    occasion: str
    attempt: str = ""

    def __str__(self) -> str:
        return _join(f"t:{self.function_call_id}.{self.wait}.{self.occasion}", self.attempt)


@dataclass(frozen=True, slots=True)
class ScopeFlushRef:
    """Reference to the entry that records the delivery of writes to `user:` and `app:` state, or its failure.

    The entry covers the events up to and including number `last`.
    """

    last: int

    def __str__(self) -> str:
        return f"d:{self.last}"


@dataclass(frozen=True, slots=True)
class OutcomeRef:
    """Reference to the entry that records what operators found out about a call whose outcome was unknown.

    It is also the last part of the ID of the invocation that asks them.
    """

    function_call_id: str
    run: int = 0
    """Number of the run whose outcome was unknown, as in `CallRef`."""

    def __str__(self) -> str:
        return f"{self.function_call_id}-outcome{f'-{self.run}' if self.run else ''}"


@dataclass(frozen=True, slots=True)
class HoldRef:
    """Reference to the entry that records that the work of an activity is held."""

    activity_id: str
    attempt: str

    def __str__(self) -> str:
        return f"h:{self.activity_id}.{self.attempt}"


EntryRef: TypeAlias = (
    LifecycleRef
    | ModelCallRef
    | ModelReplyRef
    | CallRef
    | MessageRef
    | VerificationRef
    | DeadlineRef
    | ReminderRef
    | NotificationRef
    | ScopeFlushRef
    | OutcomeRef
    | HoldRef
)

_ATTEMPT = r"(?:\.(?P<attempt>.+?))?"
_WAIT = r"(?P<function_call_id>[^.]+)\.(?P<wait>\d+)\."
_PATTERNS: dict[type[Any], re.Pattern[str]] = {
    kind: re.compile(pattern, re.DOTALL)
    for kind, pattern in {
        LifecycleRef: r"(?P<name>start|cancel|end|fork)",
        ModelCallRef: r">(?P<number>\d+)(?:@(?P<turn>\d+))?(?P<wrap_up>\^)?",
        ModelReplyRef: rf"m(?P<number>\d+){_ATTEMPT}",
        MessageRef: r"(?P<channel>[su])(?P<number>\d+)(?:\.(?P<digest>[0-9a-f]+))?(?P<verdict>[!?])?",
        VerificationRef: rf"r:(?P<message>[su]\d+){_ATTEMPT}(?P<refused>!)?",
        DeadlineRef: r"x:(?P<function_call_id>.+)",
        ReminderRef: rf"n:{_WAIT}(?P<number>\d+)",
        NotificationRef: rf"t:{_WAIT}(?P<occasion>[^.]+){_ATTEMPT}",
        ScopeFlushRef: r"d:(?P<last>-?\d+)",
        HoldRef: r"h:(?P<activity_id>[^.]+)\.(?P<attempt>.+)",
        OutcomeRef: r"(?P<function_call_id>[^.~:!?>]+)-outcome(?:-(?P<run>\d+))?",
        CallRef: rf"(?P<function_call_id>[^.~:!?>]+)(?:~(?P<run>\d+))?{_ATTEMPT}",
    }.items()
}


def parse_ref(text: str) -> EntryRef:
    """Parse a reference to an entry, or the ID of an activity whose result becomes an entry.

    Raises:
        ValueError: The text is neither a reference nor such an ID.
    """
    for kind, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(text):
            ref: EntryRef = kind(**{name: _FIELDS.get(name, str)(value) for name, value in match.groupdict("").items()})
            return ref
    raise ValueError(f"{text!r} is not a reference to a log entry.")


def without_verdict(ref: EntryRef) -> EntryRef:
    """Return the reference as it was before the decision about the answer: without verdict, refusal mark and digest."""
    match ref:
        case MessageRef():
            return MessageRef(ref.channel, ref.number)
        case VerificationRef(refused=True):
            return replace(ref, refused=False)
        case _:
            return ref


def without_digest(ref: EntryRef) -> EntryRef:
    """Return the reference without the digest of an answer, which only commands record."""
    return replace(ref, digest="") if isinstance(ref, MessageRef) else ref


def _int(text: str) -> int:
    return int(text or 0)


_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("number", "turn", "run", "wait", "last"), _int),
    **dict.fromkeys(("wrap_up", "refused"), bool),
    "message": parse_ref,
}


def _join(activity_id: str, attempt: str) -> str:
    return f"{activity_id}.{attempt}" if attempt else activity_id


def call_id_of(activity_id: str) -> str:
    """Return the function call ID that a tool activity's ID begins with."""
    return activity_id.partition(".")[0].partition("~")[0]
