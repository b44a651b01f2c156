"""Start a session's invocations, follow them until they end, send them messages, and read their histories."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import nullcontext
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from waystation.core import ids, summary
from waystation.core.contract import (
    MESSAGE_SIGNAL,
    TASK_TIMEOUT,
    WORKFLOW,
    InvocationInput,
    InvocationReport,
    InvocationResult,
)
from waystation.core.payload import JsonObject, Recorded, decode, encode
from waystation.core.projection import ARCHIVE_SESSION, COLLECT, EngineActivity
from waystation.core.session_log import (
    OPEN_STATUSES,
    CollectInput,
    SessionArchiveInput,
    SessionLog,
    StoredTranscript,
    TurnStatus,
)
from waystation.workflows.engine_activity import execute_engine_activity
from waystation.workflows.ports import failure_of, now, raw, result_of, unless_closed
from waystation.workflows.visibility import SessionVisibility, at_start

CANCEL_GRACE_S = 30.0
MAX_INPUT_BYTES = 1_800_000
R = TypeVar("R", bound=Recorded)


class SessionInvocations:
    """Starts and follows invocations, and applies their reports to the session's log."""

    def __init__(self, log: SessionLog, visibility: SessionVisibility) -> None:
        self.log, self._visibility = log, visibility
        self.changed = False
        """Whether anything has changed since the main loop last checked."""
        self.fault: Exception | None = None
        """An exception that occurred outside the main loop. The main loop raises it."""
        self.started = 0
        """Number of invocations started by this run."""
        self.transcript: list[tuple[int, float, InvocationInput | InvocationReport]] = []
        """This run's part of the transcript. Each item contains the invocation number, the time, and either the
        invocation's input or a report that was applied."""
        self._handles: dict[int, ChildWorkflowHandle[Any, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: set[tuple[int, int]] = set()
        """Joined messages that have been sent, as pairs of invocation number and message number."""
        self._starting: set[int] = set()
        """Invocations whose start the server has not reported yet, so they may have no history."""
        self._cancelled = False
        self._sending: dict[int, asyncio.Lock] = {}
        """One lock per invocation, so that it receives joined messages in the order in which the session did."""
        self._locks: dict[int, asyncio.Lock] = {}
        """One lock per invocation, so that its history is read by only one task at a time."""
        self._asked: dict[tuple[int, bool], int] = {}
        """Reads that were requested by signals and have not started. The key is the invocation number and whether to
        read to the end; the value is the log entry to read up to."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing is in flight."""
        return not self._tasks

    @property
    def only_following(self) -> bool:
        """Whether the only tasks in flight are waiting for invocations to end."""
        return len(self._tasks) <= len(self._handles)

    def start(self) -> None:
        """Start the next invocation if one is due. If its input is too large, record it as failed instead."""
        if (begun := self.log.start(workflow.info().run_id)) is None:
            return
        number, started = begun
        self.started += 1
        if len(started.encode()) > MAX_INPUT_BYTES:
            self.log.end(number, "failed")
            self.changed = True
            return
        self.transcript.append((number, now(), started))
        self._starting.add(number)
        self._begin(self._follow(number, started))

    def read(self, number: int, at: int | None = None, *, asked: bool = False) -> None:
        """Read an invocation's history up to the log entry `at`, or to its end if `at` is None.

        `asked` is true if the read was requested by a signal. Anyone can send many such signals, so reads that have not
        started are merged.
        """
        key = number, at is None
        if asked:
            known = key in self._asked
            self._asked[key] = max(self._asked.get(key, 0), at or 0)
            if known:
                return
        self._begin(self._read(number, at))

    def follows(self, number: int) -> bool:
        """Return whether this run is waiting for the invocation to end."""
        return number in self._handles

    def known(self) -> dict[int, int]:
        """The number of log entries that the session knows of each open invocation, unless it has not started yet."""
        return {turn.n: turn.known for turn in self.log.open if turn.n not in self._starting}

    async def read_all(self, numbers: Iterable[int]) -> None:
        """Read the histories of these invocations to their ends."""
        await asyncio.gather(*(self._read(number, None) for number in numbers))

    def send_joined(self) -> None:
        """Send joined messages to the running invocation, if any. Undelivered ones start separate invocations later."""
        if self.log.current is not None:
            self._send_joined(self.log.current)

    async def readings_done(self) -> None:
        """Wait for the reads that are in flight now, but not for later ones."""
        for lock in [lock for lock in self._locks.values() if lock.locked()]:
            async with lock:
                pass

    async def cancel(self) -> None:
        """Cancel the open invocations, and wait for them to end, up to a time limit."""
        self._cancelled = True
        for turn in self.log.open:
            if turn.n not in self._handles:
                invocation = workflow.get_external_workflow_handle(self.log.invocation_id(turn.n))
                self._begin(unless_closed(invocation.cancel(), "invocation.gone"))
        for handle in self._handles.values():
            handle.cancel()
        if self._tasks:
            await workflow.wait(list(self._tasks), timeout=CANCEL_GRACE_S)

    async def archive(self, reports: tuple[str, ...]) -> StoredTranscript | None:
        """Return the transcript for the next run, or None if it cannot be stored."""
        return await _call(ARCHIVE_SESSION, SessionArchiveInput(reports=reports), "archive")

    def _begin(self, step: Coroutine[Any, Any, None]) -> None:
        async def done() -> None:
            try:
                await step
            except Exception as error:  # noqa: BLE001  # the main loop raises it again
                self.fault = error
            finally:
                self._tasks.discard(task)
                self.changed = True

        task = asyncio.create_task(done())
        self._tasks.add(task)

    async def _follow(self, number: int, started: InvocationInput) -> None:
        """Run an invocation until it ends. Then apply the report in its result, or read its history if necessary."""
        status: TurnStatus = "failed"
        result: InvocationResult | None = None
        try:
            child = await workflow.start_child_workflow(
                WORKFLOW,
                raw(started.for_child().encode()),
                id=self.log.invocation_id(number),
                result_type=RawValue,
                task_timeout=TASK_TIMEOUT,
                # The server also applies this policy on continue-as-new. Invocations must outlive the run, so they are
                # abandoned, and the session cancels them itself.
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=summary.message(started.message),
                search_attributes=at_start(started) if self._visibility.check(self.log) else None,
            )
            self._handles[number] = child
            self._starting.remove(number)
            if self._cancelled and workflow.patched(ids.CANCEL_STARTED):
                child.cancel()
            self._send_joined(number)
            returned = await child
            result = InvocationResult.model_validate(decode(result_of(returned.payload)))
            status = result.status
        except (ChildWorkflowError, WorkflowAlreadyStartedError, ValueError):
            result = None
        finally:
            self._handles.pop(number, None)
            self._starting.discard(number)
        async with self._lock(number):
            report = result.report if result else None
            if result and report and report.entries is not None and self.log.continues_from(number, report):
                self._apply(number, report, report.since + len(report.entries))
                self.log.end(number, status, result.next_agent)
                return
        await self._read(number, None, status)

    def _apply(self, number: int, report: InvocationReport, length: int) -> None:
        self.log.apply(number, report, length)
        self.transcript.append((number, now(), report))

    async def _read(self, number: int, at: int | None, status: TurnStatus | None = None) -> None:
        """Read an invocation's history and apply its new entries.

        Args:
            number: The number of the invocation.
            at: The log length at which the invocation reported that it was waiting. None reads to the end.
            status: The status that the invocation is known to have ended with, if any. It is used if the history cannot
                be read.
        """
        async with self._lock(number):
            at = max(self._asked.pop((number, at is None), 0), at or 0) or None
            turn = self.log.turns.get(number)
            if turn is None or turn.status not in OPEN_STATUSES or (at is not None and at <= turn.known):
                return
            had_history = number not in self._starting
            collected = await _call(
                COLLECT, CollectInput(number=number, since=turn.known, at=at), f"invocation {number}"
            )
            if not had_history:
                return  # the task that follows the invocation applies its end
            if collected and collected.report and self.log.continues_from(number, collected.report):
                self._apply(number, collected.report, collected.at)
            if collected and collected.status == "waiting":
                self.log.park(number)
            elif collected and collected.status != "running":
                self.log.end(number, collected.status, collected.next_agent)
            elif status:
                self.log.end(number, status)

    def _lock(self, number: int) -> asyncio.Lock:
        return self._locks.setdefault(number, asyncio.Lock())

    def _send_joined(self, number: int) -> None:
        handle = self._handles.get(number)
        for join, message in self.log.turns[number].unconfirmed:
            if handle and (number, join) not in self._sent:
                self._sent.add((number, join))
                params: JsonObject = {"message": message.message, "join": join}
                if message.requester:
                    params["requester"] = message.requester
                if message.token:
                    params |= {"token": message.token, "message_id": message.message_id}
                self._begin(self._deliver(handle, number, params))

    async def _deliver(self, handle: ChildWorkflowHandle[Any, Any], number: int, params: JsonObject) -> None:
        lock = self._sending.setdefault(number, asyncio.Lock())
        is_ordered = not lock.locked() or workflow.patched(ids.JOIN_IN_ORDER)
        async with lock if is_ordered else nullcontext():
            await unless_closed(handle.signal(MESSAGE_SIGNAL, raw(encode(params))), "invocation.gone")


async def _call(activity: EngineActivity[R], params: Recorded, about: str) -> R | None:
    """Run an activity and return its parsed result, or None if the activity failed."""
    try:
        data = await execute_engine_activity(activity, params, summary=about)
    except ActivityError as error:
        workflow.logger.warning("session.not_read: %s: %s", about, failure_of(error).message)
        return None
    return activity.parse(data)
