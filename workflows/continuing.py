"""When a run of an invocation is cut, and what the next one is given.

A run that grows long has its log archived by an activity, beside whatever else is going on. Once that is done, the run
is cut at the first moment at which no activity works for it; people and called agents may be waited for. Only when it
grows much longer is nothing new begun until then. A store that fails costs nothing but a later attempt.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

from waystation.core import ids, segment
from waystation.core.continued import Archived, ArchiveInput, Carried
from waystation.core.log import Log
from waystation.core.model_call import Position
from waystation.core.payload import decode, encode
from waystation.core.segment import SegmentRef
from waystation.core.snapshot import Snapshot
from waystation.core.wire import ARCHIVE_ACTIVITY
from waystation.workflows.engine_activity import execute_engine_activity, settings
from waystation.workflows.pending import Noticeboard
from waystation.workflows.ports import failure_of, raw

PATCH = "continue-as-new"
"""Marks in a history that its run may be cut. Whoever lowers a constant below has to use a new one: the place of the
mark in the history depends on them."""
EVENTS = 1_500
BYTES = 2_000_000
SIGNALS = 2_000
UPDATES = 1_000
"""After so much a run is archived and then cut. The server ends a run with 51,200 events or 50 MB, and takes no more
than 10,000 signals or 2,000 updates."""
PRESSING = 1.5
"""Times so much, and nothing new is begun before the cut."""
AGAIN = 0.25
"""Times so much, and a cut that was not possible is tried again."""
INLINE = 64_000
"""Up to this size, in bytes, the log of a run is carried as it stands, so that a short one needs no store."""
MAX_TAIL = 256_000
"""And what came after the rest was archived."""
MAX_CARRIED = 1_500_000
"""The server takes inputs of 2 MB; larger ones would stick the workflow."""


class Continuing:
    """Keeps what a run needs to know about its end, and makes what the next one starts with."""

    def __init__(self, carried: Carried | None) -> None:
        self._carried = carried
        self._signals, self._updates = (carried.signals, carried.updates) if carried else (0, 0)
        self._segments: tuple[SegmentRef, ...] = carried.segments if carried else ()
        self._archives = 0
        self._upto: int | None = None
        """Up to where the log was archived, or found small enough, for the cut that is due."""
        self._not_before = 0.0
        self._allowed = carried is not None

    def urgency(self, log: Log, signals: int, updates: int) -> float:
        """Return how much of its share of history the run has used up; from 1 on it should be cut."""
        info = workflow.info()
        used = max(
            info.get_current_history_length() / ((log.input and log.input.cut_after) or EVENTS),
            info.get_current_history_size() / BYTES,
            (signals - self._signals) / SIGNALS,
            (updates - self._updates) / UPDATES,
            PRESSING if info.is_continue_as_new_suggested() else 0.0,
        )
        if used < max(1.0, self._not_before):
            return 0.0
        # A history from before there were cuts stays as it is.
        if not self._allowed:
            self._allowed = bool(log.input and log.input.cut_after) or workflow.patched(PATCH)
        return used if self._allowed else 0.0

    @property
    def archived(self) -> bool:
        """Whether the log is archived for the cut that is due."""
        return self._upto is not None

    @property
    def _since(self) -> int:
        return sum(each.entries for each in self._segments)

    async def archive(self, position: Position, urgency: float) -> None:
        """Have the log put into the store; when that fails, it is tried again later."""
        self._archives += 1
        given = ArchiveInput(at=position.at, new=position.new, since=self._since, inline=INLINE)
        try:
            result = await execute_engine_activity(
                ARCHIVE_ACTIVITY,
                given.encode(),
                settings().archive,
                activity_id=ids.archive(self._archives),
                cancellation=ActivityCancellationType.ABANDON,
                summary="archives the log before this run is continued as new",
            )
            done = Archived.model_validate(decode(result))
        except (ActivityError, ValueError) as error:
            why = failure_of(error) if isinstance(error, ActivityError) else None
            self._put_off(urgency, why.message if why and why.message else type(error).__name__)
            return
        if done.segment:
            self._segments = (*self._segments, done.segment)
        self._upto = done.upto

    def _put_off(self, urgency: float, reason: str) -> None:
        self._upto = None
        self._not_before = urgency + AGAIN
        workflow.logger.warning("invocation.not_continued: %s", reason)

    def cut(
        self,
        log: Log,
        noticeboard: Noticeboard,
        *,
        signals: int,
        updates: int,
        children: dict[str, str],
        urgency: float,
    ) -> None:
        """End this run and begin the next one; returns only when that is not possible now. No activity may work."""
        tail = self._tail(log)
        if len(encode(tail)) > MAX_TAIL:
            self._upto = None  # too much came since; it is archived, too
            return
        carried = Carried(
            run_id=workflow.info().run_id,
            snapshot=Snapshot.of(log),
            signals=signals,
            updates=updates,
            segments=self._segments,
            tail=tuple(tail),
            children=children,
            search_attributes=noticeboard.registered,
            posted=noticeboard.posted,
        )
        assert log.input is not None
        data = carried.input(log.input)
        if len(data) > MAX_CARRIED:
            text = f"state and open calls are {len(data)} bytes; at most {MAX_CARRIED} can be carried over."
            self._put_off(urgency, text)
            return
        workflow.continue_as_new(raw(data), memo=noticeboard.memo(log.input))

    def _tail(self, log: Log) -> list[dict[str, object]]:
        """Return the entries after the last segment; those of earlier runs, if any, were carried as they stand."""
        since = self._since
        own = segment.to_json(log.since(max(since, log.entries_before)))
        return [*self._carried.tail, *own] if self._carried and since < log.entries_before else own
