"""The invocations of a session: started, followed to their ends, sent further messages, and read where needed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from waystation.core import (
    ARCHIVE_SESSION,
    COLLECT,
    MESSAGE_SIGNAL,
    OPEN_STATUSES,
    WORKFLOW,
    CollectInput,
    EngineActivity,
    InvocationInput,
    InvocationResult,
    KeptTranscript,
    Recorded,
    Report,
    SessionArchiveInput,
    SessionLog,
    TurnStatus,
    decode,
    encode,
    summary,
)
from waystation.workflows.engine_activity import execute_engine_activity
from waystation.workflows.ports import failure_of, now, raw, result_of, unless_closed
from waystation.workflows.visibility import at_start

CANCEL_GRACE_S = 30.0
MAX_INPUT_BYTES = 1_800_000
R = TypeVar("R", bound=Recorded)


class SessionInvocations:
    """Starts and follows invocations, and applies to the session's log what they did."""

    def __init__(self, log: SessionLog) -> None:
        self.log = log
        self.changed = False
        """Whether something happened that the main loop has not looked at."""
        self.fault: Exception | None = None
        """What failed outside the main loop, which raises it."""
        self.started = 0
        """How many invocations this run has started."""
        self.transcript: list[tuple[int, float, InvocationInput | Report]] = []
        """This run's part of the transcript: number of the invocation, time, and its input or a report applied."""
        self._handles: dict[int, ChildWorkflowHandle[Any, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: set[tuple[int, int]] = set()
        """Messages sent to invocations at work: numbers of invocation and message."""
        self._locks: dict[int, asyncio.Lock] = {}
        """Each invocation is read by one reading at a time."""
        self._asked: dict[tuple[int, bool], int] = {}
        """Readings that signals asked for and have not begun: up to where; by invocation, and whether to its end."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing is in flight."""
        return not self._tasks

    @property
    def only_following(self) -> bool:
        """Whether nothing is in flight but waiting for invocations to end."""
        return len(self._tasks) <= len(self._handles)

    def start(self) -> None:
        """Start the next invocation, if one is due."""
        if (begun := self.log.start(workflow.info().run_id)) is None:
            return
        number, started = begun
        self.started += 1
        if len(started.encode()) > MAX_INPUT_BYTES:
            self.log.end(number, "failed")
            self.changed = True
            return
        self.transcript.append((number, now(), started))
        self._begin(self._follow(number, started))

    def read(self, number: int, at: int | None = None, *, asked: bool = False) -> None:
        """Read an invocation's own history: up to where it waits, or to its end.

        `asked` says that a signal asks for it; anybody can send a thousand of those, so readings that have not begun
        are merged.
        """
        key = number, at is None
        if asked:
            known = key in self._asked
            self._asked[key] = max(self._asked.get(key, 0), at or 0)
            if known:
                return
        self._begin(self._read(number, at))

    def follows(self, number: int) -> bool:
        """Whether this run waits for the end of an invocation."""
        return number in self._handles

    def send_joined(self) -> None:
        """Send messages to the invocation at work. Those that do not arrive start others when it is over."""
        if self.log.current is not None:
            self._send_joined(self.log.current)

    async def readings_done(self) -> None:
        """Wait for the readings in flight; those that signals ask for in the meantime queue behind."""
        for lock in [lock for lock in self._locks.values() if lock.locked()]:
            async with lock:
                pass

    async def cancel(self) -> None:
        """Cancel the open invocations, and wait a while for them to say how they ended."""
        for turn in self.log.open:
            if turn.n not in self._handles:
                invocation = workflow.get_external_workflow_handle(self.log.invocation_id(turn.n))
                self._begin(unless_closed(invocation.cancel(), "invocation.gone"))
        for handle in self._handles.values():
            handle.cancel()
        if self._tasks:
            await workflow.wait(list(self._tasks), timeout=CANCEL_GRACE_S)

    async def archive(self, reports: tuple[str, ...]) -> KeptTranscript | None:
        """Return the transcript for the next run; None when it cannot be stored."""
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
        """Run an invocation to its end."""
        text = started.message if isinstance(started.message, str) else "…"
        status: TurnStatus = "failed"
        result: InvocationResult | None = None
        try:
            child = await workflow.start_child_workflow(
                WORKFLOW,
                raw(started.encode()),
                id=self.log.invocation_id(number),
                result_type=RawValue,
                # No policy that asks to cancel: continuing as new counts as closing. The session cancels them itself.
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=summary.clip(f"{started.agent}: {text}"),
                search_attributes=at_start(started) if self.log.attributes else None,
            )
            self._handles[number] = child
            self._send_joined(number)
            returned = await child
            result = InvocationResult.model_validate(decode(result_of(returned.payload)))
            status = result.status
        except (ChildWorkflowError, WorkflowAlreadyStartedError, ValueError):
            result = None
        finally:
            self._handles.pop(number, None)
        async with self._lock(number):
            report = result.report if result else None
            if result and report and report.entries is not None and self.log.takes(number, report):
                self._apply(number, report, report.since + len(report.entries))
                self.log.end(number, status, result.next_agent)
                return
        await self._read(number, None, status)

    def _apply(self, number: int, report: Report, length: int) -> None:
        self.log.apply(number, report, length)
        self.transcript.append((number, now(), report))

    async def _read(self, number: int, at: int | None, status: TurnStatus | None = None) -> None:
        """Read an invocation's own history, and apply what the session does not know of it.

        `at` is where it says that it waits; `status` how it is known to have ended, for when it cannot be read.
        """
        async with self._lock(number):
            at = max(self._asked.pop((number, at is None), 0), at or 0) or None
            turn = self.log.turns.get(number)
            if turn is None or turn.status not in OPEN_STATUSES or (at is not None and at <= turn.known):
                return
            found = await _call(COLLECT, CollectInput(number=number, since=turn.known, at=at), f"invocation {number}")
            if found and found.report and self.log.takes(number, found.report):
                self._apply(number, found.report, found.at)
            if found and found.status == "waiting":
                self.log.park(number)
            elif found and found.status != "running":
                self.log.end(number, found.status, found.next_agent)
            elif status:
                self.log.end(number, status)

    def _lock(self, number: int) -> asyncio.Lock:
        return self._locks.setdefault(number, asyncio.Lock())

    def _send_joined(self, number: int) -> None:
        handle = self._handles.get(number)
        for join, message in self.log.turns[number].unconfirmed:
            if handle and (number, join) not in self._sent:
                self._sent.add((number, join))
                params = raw(encode({"message": message.message, "join": join}))
                self._begin(unless_closed(handle.signal(MESSAGE_SIGNAL, params), "invocation.gone"))


async def _call(activity: EngineActivity[R], params: Recorded, about: str) -> R | None:
    """Return the activity's result; None when it failed for good."""
    try:
        data = await execute_engine_activity(activity, params, summary=about)
    except ActivityError as error:
        workflow.logger.warning("session.not_read: %s: %s", about, failure_of(error).message)
        return None
    return activity.parse(data)
