"""The heartbeats and failures of one activity attempt.

Without heartbeats, the server would notice a lost worker only at the timeout, and the activity would never receive a
cancellation.
"""

import asyncio
import contextvars
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import structlog
from temporalio import activity
from temporalio.api.common.v1 import Payloads
from temporalio.api.workflowservice.v1 import (
    RecordActivityTaskHeartbeatRequest,
    RecordActivityTaskHeartbeatResponse,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from waystation.core import ForeignHistory, HoldReason, StoreFailed, responses

events = structlog.get_logger("waystation.activities")

INTERVAL_S = 10.0
"""Interval between heartbeats of an activity without a heartbeat timeout."""
DETAILS_INTERVAL_S = 0.5
"""Minimum interval between heartbeats that carry details. The first one is sent immediately."""
HEARTBEAT_LIMIT = timedelta(seconds=5)
MAX_FAILURE_CHARS = 500
MAX_BLOCKED_ATTEMPTS = 2
"""Maximum number of attempts at an activity that blocks the event loop. The limit is lower than for other lost workers,
because each attempt can cost a worker."""

current_activity: ContextVar[activity.Info | None] = ContextVar("current_activity", default=None)
"""The activity that runs in the current context. Unlike the SDK's variable, it can be read by other threads."""


class EventLoopBlocked(BaseException):
    """Raised inside an activity that has blocked the event loop for too long.

    This is a `BaseException` so that `except Exception` in the blocking code does not catch it.
    """


HOLD_AFTER = 4
"""Number of attempts after which a model call is held. They take about 7 s. Shorter outages add nothing to the history.
"""


class Heartbeater:
    """Sends heartbeats at regular intervals, and sooner if there are new details.

    The interval is a third of the activity's heartbeat timeout. Each heartbeat is a billable action of Temporal Cloud,
    and also asks the server whether the activity was canceled, so a cancellation may arrive this much later.

    The SDK sends the first heartbeat at once and holds the others back for most of the heartbeat timeout. Worker options
    could change that, but only for all activities of the worker. So the other heartbeats are sent by a request of their
    own as well.
    """

    def __init__(self, details_interval_s: float = DETAILS_INTERVAL_S) -> None:
        self.details_interval_s = details_interval_s
        timeout = activity.info().heartbeat_timeout
        self._interval_s = timeout.total_seconds() / 3 if timeout else INTERVAL_S
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        # Capture the context now, because `send` is called from threads that do not have the activity's context.
        self._context = contextvars.copy_context()
        self._details: Callable[[], Sequence[object]] = tuple
        self._mark: tuple[object, ...] = ()
        self._last_beat_at = float("-inf")
        self._sending: asyncio.Task[None] | None = None
        self._is_urgent = False
        self._is_stopped = False
        # Use a timer instead of a task: it costs nothing if the tool finishes before the first heartbeat.
        self._timer = self._beat_after(self._interval_s)

    def ask_every(self, interval: timedelta | None) -> None:
        """Send a heartbeat at least this often, so that a cancellation arrives sooner."""
        if interval is not None and interval.total_seconds() < self._interval_s:
            self._interval_s = interval.total_seconds()
            self._beat_at(self._interval_s)

    def send(self, details: Callable[[], Sequence[object]]) -> None:
        """Send a heartbeat soon. From now on, each heartbeat calls `details` for its details. This method is
        thread-safe.
        """
        self._details = details
        if not self._is_urgent:
            self._is_urgent = True
            self._loop.call_soon_threadsafe(self._beat_soon, context=self._context)

    def record(self, *details: object) -> None:
        """Send a heartbeat with these details soon. After several calls in quick succession, only the last details are
        sent. This method is thread-safe.
        """
        self.send(lambda: details)

    def flush(self) -> None:
        """Send any pending details now, because the activity is about to fail and its next attempt reads them."""
        if self._is_urgent:
            self._hand_over()

    def pause(self) -> None:
        """Send no heartbeats until `mark` is called."""
        self._timer.cancel()

    async def mark(self, mark: object) -> None:
        """End the details of all further heartbeats with `mark`, and wait until the server has stored it.

        If this process is lost, the next attempt finds the mark. There must not be any heartbeat in flight, because it
        might overwrite the mark.

        Raises:
            RPCError: The server did not confirm the mark.
        """
        self._mark = (mark,)
        await _record_heartbeat(mark)
        self._timer = self._beat_after(self._interval_s)

    def replace_mark(self, mark: object) -> None:
        """Like `mark`, but send the mark when this attempt fails."""
        self._mark, self._is_urgent = (mark,), True

    def stop(self) -> None:
        """Stop sending heartbeats."""
        self._is_stopped = True
        self._timer.cancel()
        if self._sending:
            self._sending.cancel()

    def _beat_soon(self) -> None:
        if not self._is_stopped:
            self._beat_at(self._last_beat_at + self.details_interval_s - self._loop.time())

    def _beat_at(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self._beat_after(seconds)

    def _beat_after(self, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, seconds), self._beat, context=self._context)

    def _beat(self) -> None:
        is_first, self._last_beat_at = self._last_beat_at < 0, self._loop.time()
        details = self._hand_over()
        if not is_first and not activity.info().is_local and (self._sending is None or self._sending.done()):
            self._sending = self._loop.create_task(self._send(details))
        self._timer = self._beat_after(self._interval_s)

    def _hand_over(self) -> Sequence[object]:
        """Give the SDK a heartbeat. It cancels activities that do not, and sends the last one when an attempt fails."""
        self._is_urgent = False
        details = (*self._details(), *self._mark)
        if not activity.info().is_local:  # for the server, there is no such activity
            activity.heartbeat(*details)
        return details

    async def _send(self, details: Sequence[object]) -> None:
        try:
            answer = await _record_heartbeat(*details)
        except RPCError:  # the next heartbeat follows, and the SDK's own tell it if the activity has ended
            return
        if answer.cancel_requested and self._task and not self._is_stopped and self._task not in _canceled:
            _canceled.add(self._task)
            self._task.cancel()


_canceled: "WeakSet[asyncio.Task[Any]]" = WeakSet()
"""Activities that have learned from a heartbeat of their own that they are canceled. The SDK does not know it yet."""


async def _record_heartbeat(*details: object) -> RecordActivityTaskHeartbeatResponse:
    client = activity.client()
    return await client.workflow_service.record_activity_task_heartbeat(
        RecordActivityTaskHeartbeatRequest(
            namespace=client.namespace,
            identity=client.identity,
            task_token=activity.info().task_token,
            details=Payloads(payloads=await client.data_converter.encode(details)),
        ),
        timeout=HEARTBEAT_LIMIT,
    )


@contextmanager
def send_heartbeats(details_interval_s: float = DETAILS_INTERVAL_S) -> Iterator[Heartbeater]:
    """Send heartbeats while the block runs. If the block raises an exception, send pending details first."""
    heart = Heartbeater(details_interval_s)
    try:
        yield heart
    except BaseException:
        heart.flush()
        raise
    finally:
        heart.stop()


def activity_failure(
    event: str,
    kind: str,
    text: str,
    *,
    retry: bool = False,
    delay: timedelta | None = None,
    hold: HoldReason | None = None,
    hold_after: int = HOLD_AFTER,
    started: bool = False,
    **fields: str,
) -> ApplicationError:
    """Log a failed attempt as `event` and return the error, which must be raised `from None`.

    Temporal records an error's cause in the history, and the original message may contain user content.

    `hold` is the reason why this worker cannot do the work, although it or another worker may be able to do it later.
    Such an attempt is retried. After `hold_after` attempts, the workflow holds the work. `started` is whether an
    earlier attempt had started the tool of a held call.
    """
    info, text = activity.info(), text[:MAX_FAILURE_CHARS]
    details: list[object] = []
    if hold:
        details.append({"hold": hold, "mark": secrets.token_hex(3), "started": started})
        # Attempts are limited only before the work is held.
        is_held = info.retry_policy is not None and not info.retry_policy.maximum_attempts
        retry = is_held or info.attempt < hold_after
        fields["hold"] = hold
    about = {"invocation_id": info.workflow_id, "error_type": kind, "problem": text, "attempt": info.attempt}
    events.warning(event, **about, retry=retry, **fields)
    # Mark the error as benign because it is already logged. The SDK would log a stack trace, which may contain user
    # content.
    benign = ApplicationErrorCategory.BENIGN
    return ApplicationError(text, *details, type=kind, non_retryable=not retry, next_retry_delay=delay, category=benign)


def blocked_failure(info: activity.Info, blocked_s: float) -> ApplicationError:
    """Return the error with which an activity fails after it has blocked the event loop."""
    name = info.activity_type.rpartition(".")[2]
    text = f"{describe_block(name, blocked_s)} {responses.unknown_effect(info.attempt)}"
    final = info.attempt >= MAX_BLOCKED_ATTEMPTS
    benign = ApplicationErrorCategory.BENIGN  # already logged
    return ApplicationError(text, type=EventLoopBlocked.__name__, non_retryable=final, category=benign)


def describe_block(name: str, blocked_s: float) -> str:
    return f"`{name}` blocked the event loop of its worker for {blocked_s:g} s and was stopped."


@asynccontextmanager
async def track_activity() -> AsyncIterator[None]:
    """Make the activity in this block known to the watchdog, and convert `EventLoopBlocked` to an activity failure.

    If the activity ends because a heartbeat of its own said that it is canceled, report that to the server.
    """
    current_activity.set(activity.info())
    try:
        yield
    except asyncio.CancelledError:
        if asyncio.current_task() not in _canceled or activity.is_cancelled():
            raise
        token = activity.info().task_token
        await activity.client().get_async_activity_handle(task_token=token).report_cancellation()
        activity.raise_complete_async()
    except EventLoopBlocked as error:
        raise blocked_failure(activity.info(), *error.args) from None


@contextmanager
def convert_errors(
    event: str,
    *,
    final: tuple[type[Exception], ...] = (ForeignHistory,),
    retried: tuple[type[Exception], ...] = (StoreFailed,),
) -> Iterator[None]:
    """Convert `final` errors to activity failures that the server does not retry, and `retried` errors to ones that it
    retries. Other errors pass through unchanged.
    """
    try:
        yield
    except (*final, *retried) as error:
        raise activity_failure(event, type(error).__name__, str(error), retry=isinstance(error, retried)) from None
