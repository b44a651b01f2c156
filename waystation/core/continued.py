"""What one run of an invocation hands to the run that continues it.

A history has bounds, an invocation has none: before its history grows too long a run ends and another one, with the
same workflow id, goes on. What the workflow needs is carried as a snapshot. The log before the cut is carried by
reference, in segments that an activity has put into the store; only its last stretch, when small, as it stands.
"""

from collections.abc import Awaitable, Callable, Sequence

from pydantic import Field, ValidationError

from waystation.core import segment
from waystation.core.entry import Entry, Failure
from waystation.core.errors import ForeignHistory
from waystation.core.log import Log
from waystation.core.model_call import Position
from waystation.core.payload import JsonObject, Recorded, decode, encode
from waystation.core.segment import SegmentRef
from waystation.core.snapshot import Snapshot
from waystation.core.wire import InvocationInput

MAX_KEPT_MESSAGE = 4_096
"""A message up to this size, in bytes, stands in the input of each run, where people look for it."""

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a digest, as `Blobs.get` does."""


class Carried(Recorded):
    """What a run has from the run that it continues."""

    run_id: str
    """Of that run."""
    snapshot: Snapshot
    signals: int = 0
    """How many had arrived in the invocation."""
    updates: int = 0
    segments: tuple[SegmentRef, ...] = ()
    """All that came before, oldest first, but for the last stretch."""
    tail: tuple[JsonObject, ...] = ()
    """The entries of that stretch."""
    children: dict[str, str] = Field(default_factory=dict)
    """Called agents that are still at work: ids of the calls, and of the children's first runs."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered."""
    posted: tuple[JsonObject, ...] = ()
    """What the memo says is pending."""
    forked: bool = False
    """Whether the entries were another invocation's: the run before has only read them."""

    @property
    def archived(self) -> int:
        """How many entries the segments hold."""
        return sum(each.entries for each in self.segments)

    def input(self, before: InvocationInput) -> bytes:
        """Return the input of the run that continues."""
        large = len(encode(before.message)) > MAX_KEPT_MESSAGE
        carried = self.model_dump(mode="json", exclude_defaults=True)
        update = {"state": {}, "carried": carried, **({"message": ""} if large else {})}
        return before.model_copy(update=update).encode()


class ArchiveInput(Position):
    """Input of the activity that puts entries into the store."""

    since: int
    """The first entry that is not in a segment yet."""
    inline: int = 0
    """Up to this size, in bytes, they are left to be carried as they stand."""


class Archived(Recorded):
    """What that activity reports."""

    upto: int
    """How many entries there are up to and with the last one archived."""
    segment: SegmentRef | None = None
    """None: they are few enough to be carried as they stand."""


class ChildInput(Position):
    """Input of the activity that asks what became of a called agent which an earlier run started."""

    workflow_id: str
    run_id: str
    """Of the child's first run."""


class ChildOutcome(Recorded):
    """What became of it."""

    result: JsonObject | None = None
    """An `InvocationResult`."""
    failure: Failure | None = None


def carried_in(payloads: Sequence[bytes]) -> tuple[InvocationInput, Carried] | None:
    """Return what the input of a run carries, and the input without it; None when the run begins the invocation.

    Only for a run that the server says continues another: anybody may send such a field.

    Raises:
        ForeignHistory: It cannot be read.
    """
    try:
        given = InvocationInput.model_validate(decode(payloads[0]))
        if given.carried is None:
            return None
        return given.model_copy(update={"carried": None}), Carried.model_validate(given.carried)
    except (IndexError, ValidationError, ValueError):
        raise ForeignHistory("What a run carries over cannot be read; it is damaged or a newer version's.") from None


async def extend(log: Log, carried: Carried, fetch: Fetch) -> None:
    """Append to a log of earlier entries those that it lacks up to the cut. Segments that are known are not read.

    Raises:
        ForeignHistory: The pieces do not fit together, or the log is further on than the cut.
        StoreFailed: A segment is not to be had.
    """
    at, end = 0, carried.snapshot.entries
    if log.length > end:
        raise ForeignHistory(f"The log of {log.invocation_id!r} has more entries than were carried over.")
    for ref in carried.segments:
        if at + ref.entries > log.length:
            _append(log, segment.unpack(await fetch(ref.digest)), at, ref.entries)
        at += ref.entries
    _append(log, segment.from_json(carried.tail), at, end - at)


def _append(log: Log, entries: Sequence[Entry], at: int, count: int) -> None:
    if len(entries) != count:
        raise ForeignHistory(f"A kept stretch of {log.invocation_id!r} has {len(entries)} entries, not {count}.")
    log.extend(entries[max(log.length - at, 0) :])
