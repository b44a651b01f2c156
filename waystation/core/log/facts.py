"""Facts: the history events of an invocation, decoded from Temporal's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from waystation.core.log.entry import EndStatus, Failure
from waystation.core.log.snapshot import Carried, parse_carried
from waystation.core.wire import InvocationInput


@dataclass(frozen=True, slots=True)
class Started:
    """The invocation was started with this input."""

    payloads: Sequence[bytes]
    continues: bool = False
    """Whether the server reports that the run continues another run."""
    parent: str = ""
    """ID of the parent workflow that the server reports, or empty."""

    def carried(self) -> tuple[InvocationInput, Carried] | None:
        """Return the input and the carried state, or None for the first run of an invocation."""
        return parse_carried(self.payloads) if self.continues else None


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal arrived."""

    name: str
    payloads: Sequence[bytes]
    lacking: str | None = None
    """Why this process cannot read the offloaded content, or None if it can. A worker may have read it anyway."""


@dataclass(frozen=True, slots=True)
class NotFound:
    """A workflow task could not find the content of a signal."""

    number: int
    """Number of the signal, starting at 1."""


@dataclass(frozen=True, slots=True)
class Returned:
    """An activity or a called agent returned. `ref` is the activity ID or, for a called agent, the function call ID."""

    ref: str
    data: bytes
    child: bool = False
    followed: bool = False
    """Whether this is an activity that reports the result of a child started by an earlier run."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An activity or a called agent ended without a result."""

    ref: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A workflow task canceled an engine activity and treats it as lost without waiting for it to end."""

    ref: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer fired. It does not matter which one, because deadlines are compared with the clock."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Cancellation of the invocation was requested."""


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """A workflow task completed. At `time`, it applied everything that had arrived."""

    time: float


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A workflow task scheduled an activity."""

    ref: str
    data: bytes
    model: bool


@dataclass(frozen=True, slots=True)
class UpdateAccepted:
    """A workflow task accepted an update with an answer."""

    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Closed:
    """The run ended."""

    status: EndStatus
    time: float


Fact: TypeAlias = (
    Started
    | Signalled
    | NotFound
    | Returned
    | Lost
    | Abandoned
    | TimerFired
    | CancelAsked
    | TaskCompleted
    | Scheduled
    | UpdateAccepted
    | Closed
)
