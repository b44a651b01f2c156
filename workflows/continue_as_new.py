"""Continue an invocation as new before its history grows too long, and start forks.

When a run grows long, an activity archives its log while everything else continues. The run then continues as new as
soon as no activity is in flight; pending calls and called agents do not delay this. If the run keeps growing, it
schedules nothing new until it has continued as new. If the store fails, archiving is retried later.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

from waystation.core import ids
from waystation.core.contract import MEMO_FORK, InvocationInput, Position, SegmentRef
from waystation.core.log import (
    FORK,
    MAX_IGNORED_EVENTS,
    AnswerIgnored,
    CallModel,
    Failure,
    ForkRefused,
    MessageRef,
    Perform,
    Step,
    Wait,
)
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import ARCHIVE, TAKE_OVER, ArchiveInput, Carried, Snapshot, entries_to_json
from waystation.workflows.engine_activity import execute_engine_activity
from waystation.workflows.log_writer import LogWriter
from waystation.workflows.ports import failure_of, measure, raw, trace
from waystation.workflows.scheduler import Scheduler
from waystation.workflows.visibility import Visibility

EVENTS = 1_500
BYTES = 2_000_000
SIGNALS = 2_000
UPDATES = 1_000
"""`EVENTS`, `BYTES`, `SIGNALS` and `UPDATES` are limits of a run's history. When a run reaches one of them, its log is
archived, and the run continues as new. An invocation's `cut_after` replaces `EVENTS`. The server's limits are 51,200
events, 50 MB, 10,000 signals and 2,000 updates."""
PRESSING = 1.5
"""The multiple of a limit at which a run stops scheduling new work until it has continued as new. A run with a called
agent that cannot outlive it keeps scheduling."""
AGAIN = 0.25
"""How much a run must grow, as a fraction of the limits, before it repeats a failed attempt to archive or continue."""
INLINE = 64_000
"""Entries of up to this many bytes in total are passed inline to the next run instead of through the store, so that
short runs do not need a store."""
MAX_TAIL = 256_000
"""Maximum size in bytes of the entries added since the log was archived. If they are larger, the run archives the log
again before it continues as new."""
MAX_CARRIED = 1_500_000
"""Maximum size in bytes of the next run's input. If it is larger, the run does not continue as new, because an input
over the server's limit of 2 MB would block the workflow."""


class ContinueAsNew:
    """Decides when a run continues as new, and what the next run starts with."""

    def __init__(
        self, carried: Carried | None, writer: LogWriter, scheduler: Scheduler, visibility: Visibility
    ) -> None:
        self._carried, self._writer, self._scheduler, self._visibility = carried, writer, scheduler, visibility
        self._before = (carried.signals, carried.updates) if carried else (0, 0)
        self._segments: tuple[SegmentRef, ...] = carried.segments if carried else ()
        self._archives = 0
        self._archiving: asyncio.Task[None] | None = None
        self._upto: int | None = None
        """Length of the log that has been archived, or that is small enough to be passed inline. None if the log must
        be archived (again) before the run continues as new."""
        self._not_before = 0.0

    def due(self, step: Step, messages: tuple[int, int], *, complete: bool) -> bool:
        """If the run is long enough, archive its log or continue as new. Return whether nothing new may be scheduled
        until it has continued as new.

        Args:
            step: The next step of the invocation.
            messages: The number of signals and the number of updates that all runs have received so far.
            complete: Whether results have arrived. They come last in a workflow task, so all of the task's input has
                been processed.
        """
        state = self._writer.log.state
        if not isinstance(step, CallModel | Perform | Wait) or state.input is None:
            return False
        urgency = self._urgency(state.input, *messages)
        if not urgency or self._archiving or self._scheduler.background or self._scheduler.events.starting:
            return False
        if self._upto is None:
            self._archiving = asyncio.create_task(self._archive(self._writer.position(), urgency))
            return False
        if complete and self._scheduler.only_children():
            self._continue(state.input, messages, urgency)
            return False
        # Keep scheduling while a target, or a called agent that cannot outlive the run, is in flight: it may never end.
        waits = any(
            call.call.target or (call.call.kind == "agent" and not call.call.detached) for call in state.performing()
        )
        return urgency >= PRESSING and not waits

    def _urgency(self, started: InvocationInput, signals: int, updates: int) -> float:
        """Return the highest usage as a fraction of its limit, or 0 if the run does not have to continue as new yet."""
        info = workflow.info()
        used = max(
            info.get_current_history_length() / (started.cut_after or EVENTS),
            info.get_current_history_size() / BYTES,
            (signals - self._before[0]) / SIGNALS,
            (updates - self._before[1]) / UPDATES,
            PRESSING if info.is_continue_as_new_suggested() else 0.0,
        )
        return used if used >= max(1.0, self._not_before) else 0.0

    @property
    def _since(self) -> int:
        return sum(segment.entries for segment in self._segments)

    async def _archive(self, position: Position, urgency: float) -> None:
        """Archive the log. If this fails, `due` starts another attempt later."""
        self._archives += 1
        params = ArchiveInput(at=position.at, new=position.new, since=self._since, inline=INLINE)
        with self._writer.guard():
            try:
                done = ARCHIVE.parse(
                    await execute_engine_activity(
                        ARCHIVE,
                        params,
                        activity_id=ids.archive(self._archives),
                        summary="archive the log before continue-as-new",
                    )
                )
            except ActivityError as error:
                self._put_off(urgency, failure_of(error).message or type(error).__name__)
            except ValueError as error:
                self._put_off(urgency, type(error).__name__)
            else:
                self._segments = (*self._segments, done.segment) if done.segment else self._segments
                self._upto = done.upto
        self._archiving = None
        self._scheduler.arrivals += 1

    def _put_off(self, urgency: float, reason: str) -> None:
        self._upto = None
        self._not_before = urgency + AGAIN
        workflow.logger.warning("invocation.not_continued: %s", reason)

    def _continue(self, started: InvocationInput, messages: tuple[int, int], urgency: float) -> None:
        """Continue as new, which ends the run. Return only if this is not possible now."""
        tail = self._tail()
        if len(encode(tail)) > MAX_TAIL:
            self._upto = None  # too many entries were added since the archive was written: archive again
            return
        carried = Carried(
            run_id=workflow.info().run_id,
            snapshot=Snapshot.of(self._writer.log),
            signals=messages[0],
            updates=messages[1],
            segments=self._segments,
            tail=tuple(tail),
            children=self._scheduler.children,
            search_attributes=self._visibility.registered,
            posted=self._visibility.published,
        )
        data = carried.input(started)
        if len(data) > MAX_CARRIED:
            self._put_off(
                urgency, f"state and open calls are {len(data)} bytes; at most {MAX_CARRIED} can be carried over."
            )
            return
        trace(self._writer.log, over=True)
        measure(self._writer.log)
        self._writer.note_command()
        workflow.continue_as_new(raw(data), memo=self._visibility.memo(started))

    def _tail(self) -> list[JsonObject]:
        """Return the entries after the last archived segment, including those that earlier runs passed inline."""
        log, since = self._writer.log, self._since
        own = entries_to_json(log.since(max(since, log.entries_before)))
        return [*self._carried.tail, *own] if self._carried and since < log.entries_before else own


async def take_over(writer: LogWriter, visibility: Visibility) -> ForkRefused:
    """Continue a fork as new with the entries inherited from its source. Return only if it cannot inherit them.

    At this point, the log contains only ignored messages that arrived while the source was read. The fork keeps the
    ignored messages that emit events.
    """
    try:
        taken = TAKE_OVER.parse(
            await execute_engine_activity(
                TAKE_OVER, writer.position(), activity_id=str(FORK), summary="read the source of the fork"
            )
        )
        started = InvocationInput.model_validate(taken.input)
    except ActivityError as error:
        return ForkRefused(failure_of(error))
    except ValueError:
        return ForkRefused(Failure(kind="error", error_type="EngineFault"))
    info = workflow.info()
    own = taken.snapshot.restored(info.workflow_id, started)
    sent = [entry for entry in writer.log.entries if isinstance(entry.body, AnswerIgnored)]
    for number, entry in enumerate(sent[:MAX_IGNORED_EVENTS], taken.signals + 1):
        own.append(MessageRef("s", number, "!"), entry.time, entry.body)
    carried = Carried(
        run_id=info.run_id,
        snapshot=Snapshot.of(own),
        signals=taken.signals + len(sent),
        updates=taken.updates,
        segments=taken.segments,
        tail=(*taken.tail, *entries_to_json(own.entries)),
        search_attributes=taken.search_attributes or visibility.registered,
        forked=True,
    )
    workflow.continue_as_new(raw(carried.input(started)), memo={MEMO_FORK: started.fork.memo()} if started.fork else {})
