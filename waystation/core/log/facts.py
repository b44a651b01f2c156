"""What a history says, freed of Temporal's encoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from waystation.core.log.entry import EndStatus, Failure
from waystation.core.log.snapshot import Carried, carried_in
from waystation.core.wire import InvocationInput


@dataclass(frozen=True, slots=True)
class Started:
    """The invocation was started with this input."""

    payloads: Sequence[bytes]
    continues: bool = False
    """Whether the server says that the run continues another."""
    child: bool = False
    """Whether the server says that another workflow started it."""

    def carried(self) -> tuple[InvocationInput, Carried] | None:
        """Return what the run has from another, and its input; None for a run that begins an invocation."""
        return carried_in(self.payloads) if self.continues else None


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal arrived."""

    name: str
    payloads: Sequence[bytes]
    lacking: str | None = None
    """Why its content cannot be had here, when it was put into a store; workers may have had it."""


@dataclass(frozen=True, slots=True)
class NotFound:
    """A workflow task did not find the content of a signal."""

    number: int
    """Which signal, from 1."""


@dataclass(frozen=True, slots=True)
class Returned:
    """An activity or a child gave a result; `ref` is a model reply's or a function call's."""

    ref: str
    data: bytes
    child: bool = False
    followed: bool = False
    """Whether an activity says so of a child that an earlier run started."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An activity or a child ended without a result."""

    ref: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A workflow task cancelled an activity of the engine, and counts it as lost without waiting for its end."""

    ref: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer fired; which one does not matter, deadlines are compared with the clock."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """The invocation was asked to cancel."""


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """A workflow task was completed: all that arrived before it has been applied, at `time`."""

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
    """The run is over."""

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
