"""Facts: the history events of an invocation, decoded from Temporal's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from waystation.core.contract import InvocationInput
from waystation.core.log import EndStatus, Failure
from waystation.core.projection.snapshot import Carried, parse_carried


@dataclass(frozen=True, slots=True)
class Started:
    """Fact: a run of the invocation was started with this input."""

    payloads: Sequence[bytes]
    continues: bool = False
    """Whether the server reports that the run continues another run."""
    parent: str = ""
    """ID of the parent workflow that the server reports, or an empty string."""
    parent_run: str = ""
    """ID of that workflow's run."""
    first_run: str | None = None
    """ID of the invocation's first run, as the server reports it."""

    def carried(self) -> tuple[InvocationInput, Carried] | None:
        """Return the input and the carried state, or None for the first run of an invocation."""
        return parse_carried(self.payloads) if self.continues else None


@dataclass(frozen=True, slots=True)
class Signalled:
    """Fact: a signal arrived."""

    name: str
    payloads: Sequence[bytes]
    lacking: str | None = None
    """Why this process cannot read the signal's offloaded content, or None if it can. A worker may have read it even if
    this process cannot."""


@dataclass(frozen=True, slots=True)
class NotFound:
    """Fact: a workflow task could not find the content of a signal."""

    number: int
    """Number of the signal, starting at 1."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Fact: a workflow task recorded that a signal arrived before or after a deadline; see `ids.arrival` for `mark`."""

    mark: str


@dataclass(frozen=True, slots=True)
class Returned:
    """Fact: an activity or a called agent returned. `ref` is the activity ID or, for a called agent, the call ID."""

    ref: str
    data: bytes
    child: bool = False
    followed: bool = False
    """Whether an activity returned the result of a called agent that an earlier run started."""
    target: bool = False
    """Whether this is the result of a call's target: an activity, a workflow or a Nexus operation of the user."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Fact: an activity or a called agent ended without a result."""

    ref: str
    failure: Failure
    target: bool = False
    """As in `Returned`."""


@dataclass(frozen=True, slots=True)
class RanLocally:
    """Fact: within a workflow task, a local activity ended at `time`."""

    result: Returned | Lost | None
    """None if the call runs again as an ordinary activity."""
    time: float
    number: int
    """Local activities of one workflow task are scheduled in the order of these numbers."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Fact: a workflow task canceled an engine activity, and treats it as lost without waiting for it to end."""

    ref: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """Fact: a timer fired. It does not matter which timer, because deadlines are compared with the clock."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Fact: cancellation of the invocation was requested."""


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """Fact: a workflow task completed. At `time`, the task applied everything that had arrived."""

    time: float


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Fact: a workflow task scheduled an activity."""

    ref: str
    data: bytes
    model: bool


@dataclass(frozen=True, slots=True)
class UpdateAccepted:
    """Fact: a workflow task accepted an update with an answer."""

    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Closed:
    """Fact: the run ended."""

    status: EndStatus
    time: float


Fact: TypeAlias = (
    Started
    | Signalled
    | NotFound
    | Arrived
    | Returned
    | Lost
    | RanLocally
    | Abandoned
    | TimerFired
    | CancelAsked
    | TaskCompleted
    | Scheduled
    | UpdateAccepted
    | Closed
)
