"""The heartbeats and failures of one activity attempt.

Without heartbeats, the server would notice a lost worker only at the timeout, and the activity would never receive a
cancellation.
"""

import asyncio
import contextvars
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from math import inf

import structlog
from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, AsyncActivityHandle
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from waystation.core.contract import MIN_HEARTBEAT_INTERVAL
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.log import HoldReason, responses

events = structlog.get_logger("waystation.activities")

DEFAULT_TIMEOUT_S = 30.0
"""Stands for the heartbeat timeout of an activity that has none."""
SDK_PAUSE = 0.81
"""Part of the heartbeat timeout after which the SDK does not hold a heartbeat back: a little more than 80%."""
SDK_DUE = 0.85
"""Part of the heartbeat timeout after which the SDK sends its next heartbeat. It cancels the activity unless this
heartbeat has succeeded or failed by 5 s after the timeout. If the server is away, that takes about 6 s.
"""
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
    and asks the server whether the activity was canceled. A cancellation may therefore arrive this much later.

    The SDK holds a heartbeat back unless it has sent none for 80% of the timeout. A worker option could change that,
    but for all activities of the worker. So the SDK sends only one heartbeat per timeout, without which it would cancel
    the activity. From this one, it also learns that the activity is paused, reset or gone. The others are sent here.
    They do not delay it.
    """

    def __init__(self, details_interval_s: float | None = None) -> None:
        timeout = activity.info().heartbeat_timeout
        self._timeout_s = timeout.total_seconds() if timeout else DEFAULT_TIMEOUT_S
        self.interval_s = self._timeout_s / 3
        """Maximum interval between heartbeats."""
        self.details_interval_s = details_interval_s or self.interval_s
        """Minimum interval between heartbeats with new details. The first one is sent immediately."""
        self.is_canceled = False
        """Whether a heartbeat that was sent here has canceled the activity. The SDK does not know that."""
        self._loop, self._activity = asyncio.get_running_loop(), asyncio.current_task()
        # Capture the context now, because `send` is called from threads that do not have the activity's context.
        self._context = contextvars.copy_context()
        self._details: Callable[[], Sequence[object]] = tuple
        self._mark: tuple[object, ...] = ()
        self._sdk_beat_at = -inf
        self._news = asyncio.Event()
        self._is_urgent = False
        self._is_stopped = False
        self._beating: asyncio.Task[None] | None = None
        # Begin with a timer instead of a task: it costs nothing if the tool finishes before the first heartbeat.
        self._timer = self._begin_after(self.interval_s)

    def ask_every(self, interval: timedelta | None) -> None:
        """Send a heartbeat at least this often, so that a cancellation arrives sooner."""
        if interval is not None:
            self.interval_s = min(self.interval_s, max(interval, MIN_HEARTBEAT_INTERVAL).total_seconds())
            self._timer.cancel()
            self._timer = self._begin_after(self.interval_s)

    def send(self, details: Callable[[], Sequence[object]]) -> None:
        """Send a heartbeat soon. From now on, each heartbeat calls `details` for its details. This method is
        thread-safe.
        """
        self._details = details
        if not self._is_urgent:
            self._is_urgent = True
            self._loop.call_soon_threadsafe(self._wake, context=self._context)

    def record(self, *details: object) -> None:
        """Send a heartbeat with these details soon. After several calls in quick succession, only the last details are
        sent. This method is thread-safe.
        """
        self.send(lambda: details)

    def flush(self) -> None:
        """Send any pending details now, because the activity is about to fail and its next attempt reads them."""
        if self._is_urgent and not activity.info().is_local:
            activity.heartbeat(*self._take_details())

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
        await self._record(mark)
        self._timer = self._begin_after(self.interval_s)

    def replace_mark(self, mark: object) -> None:
        """Like `mark`, but send the mark when this attempt fails."""
        self._mark, self._is_urgent = (mark,), True

    def stop(self) -> None:
        """Stop sending heartbeats."""
        self._is_stopped = True
        self._timer.cancel()
        if self._beating:
            self._beating.cancel()

    def _wake(self) -> None:
        self._news.set()
        self._begin()

    def _begin_after(self, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, self._begin, context=self._context)

    def _begin(self) -> None:
        # For the server, there is no such activity as a local one.
        if not (self._beating or self._is_stopped or activity.info().is_local):
            self._timer.cancel()
            self._beating = self._loop.create_task(self._keep_beating())

    async def _keep_beating(self) -> None:
        while True:
            self._news.clear()
            with suppress(Exception):  # codecs raise anything; if the SDK's own heartbeat fails, it ends the activity
                await self._beat()
            longest = min(self.interval_s, self._sdk_due_in())
            shortest = min(self.details_interval_s, longest)
            await asyncio.sleep(shortest)
            with suppress(TimeoutError):
                # Unlike this, `wait_for` of Python 3.11 ignores a cancellation if there are new details.
                async with asyncio.timeout(longest - shortest):
                    await self._news.wait()

    async def _beat(self) -> None:
        now = self._loop.time()
        if now - self._sdk_beat_at < SDK_PAUSE * self._timeout_s:
            await self._record(*self._take_details(), limit_s=self._sdk_due_in())
        else:
            self._sdk_beat_at = now
            activity.heartbeat(*self._take_details())

    def _sdk_due_in(self) -> float:
        return self._sdk_beat_at + SDK_DUE * self._timeout_s - self._loop.time()

    def _take_details(self) -> Sequence[object]:
        self._is_urgent = False
        return (*self._details(), *self._mark)

    async def _record(self, *details: object, limit_s: float = inf) -> None:
        limit = timedelta(seconds=min(self._timeout_s / 3, limit_s))
        try:
            await _find_handle().heartbeat(*details, rpc_timeout=limit)
        except AsyncActivityCancelledError as error:
            canceled = error.details is not None and error.details.cancel_requested
            if canceled and self._activity and not self.is_canceled and not activity.is_cancelled():
                self.is_canceled = True
                self._sdk_beat_at = inf  # its heartbeat would cancel the activity a second time
                self._activity.cancel()


class CanceledByHeartbeat(BaseException):
    """Ends an activity that is canceled, as a request of the `Heartbeater` has found. The SDK does not know it yet."""


def _find_handle() -> AsyncActivityHandle:
    """Return the handle of this activity. Like the SDK, it encodes details with the key of the workflow's user."""
    info = activity.info()
    context = ActivitySerializationContext(
        namespace=info.namespace,
        workflow_id=info.workflow_id,
        workflow_type=info.workflow_type,
        activity_type=info.activity_type,
        activity_id=info.activity_id,
        activity_task_queue=info.task_queue,
        is_local=info.is_local,
    )
    return activity.client().get_async_activity_handle(task_token=info.task_token).with_context(context)


@contextmanager
def send_heartbeats(
    *, details_interval_s: float | None = None, cancel_within: timedelta | None = None
) -> Iterator[Heartbeater]:
    """Send heartbeats while the block runs. If the block raises an exception, send pending details first.

    New details are sent at most every `details_interval_s`, by default as often as heartbeats without details.

    Raises:
        CanceledByHeartbeat: A heartbeat has canceled the block.
    """
    heart = Heartbeater(details_interval_s)
    heart.ask_every(cancel_within)
    try:
        yield heart
    except BaseException as error:
        heart.flush()
        if heart.is_canceled and isinstance(error, asyncio.CancelledError):
            raise CanceledByHeartbeat from None
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

    If a heartbeat has canceled the activity, report that to the server, because the SDK would report a failure.
    """
    current_activity.set(activity.info())
    try:
        yield
    except CanceledByHeartbeat:
        with suppress(RPCError):
            await _find_handle().report_cancellation()
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
