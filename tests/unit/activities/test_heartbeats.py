"""Heartbeats of activities: when Waystation and the SDK send them, on a simulated clock."""

import asyncio
import dataclasses
import selectors
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any, Self, cast

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.converter import ActivitySerializationContext
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from waystation.activities.activity_attempt import send_heartbeats, track_activity

Work = Callable[[], Awaitable[None]]
CANCELED = AsyncActivityCancelledError(ActivityCancellationDetails(cancel_requested=True))


class Jump(selectors.DefaultSelector):
    """A selector that advances its clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready."""
        self.now += timeout or 0.0
        return super().select(0)


class Outside:
    """A fake SDK and server that record the heartbeats of an activity."""

    def __init__(self, timeout_s: float = 30, answers: dict[int, Exception] | None = None) -> None:
        self.timeout_s, self.answers, self.clock = timeout_s, answers or {}, Jump()
        self.sent = list[tuple[str, float, tuple[Any, ...]]]()
        self.canceled_at: float | None = None
        self.is_away = False

    def get_async_activity_handle(self, *, task_token: bytes) -> Self:
        """Return the handle of the activity."""
        return self

    def with_context(self, context: ActivitySerializationContext) -> Self:
        """Check that the encoding of details belongs to the activity's workflow."""
        assert context.workflow_id == ActivityEnvironment.default_info().workflow_id
        return self

    async def heartbeat(self, *details: object, rpc_timeout: timedelta) -> None:
        """Record a heartbeat request, or raise an unusual answer of the server."""
        self.note("request", *details)
        if self.is_away:
            await asyncio.sleep(rpc_timeout.total_seconds())
            raise RPCError("", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        if answer := self.answers.get(len(self.sent)):
            raise answer

    async def report_cancellation(self) -> None:
        """Record that the activity reports its cancellation."""
        self.canceled_at = self.clock.now

    def note(self, sender: str, *details: object) -> None:
        """Record a heartbeat."""
        self.sent.append((sender, round(self.clock.now, 2), details))

    def times(self, sender: str = "") -> list[float]:
        """Return the times at which heartbeats were sent."""
        return [at for name, at, _ in self.sent if sender in name]

    def run(self, work: Work, **info: Any) -> Self:
        """Run an activity."""
        environment = ActivityEnvironment(cast("Client", self))
        environment.on_heartbeat = lambda *details: self.note("sdk", *details)
        given = {"heartbeat_timeout": timedelta(seconds=self.timeout_s), **info}
        environment.info = dataclasses.replace(environment.info, **given)
        loop = asyncio.SelectorEventLoop(self.clock)
        loop.time = lambda: self.clock.now  # type: ignore[method-assign]  # the clock of `asyncio`
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(cast("Any", environment.run(work)))
        return self


def lasts(seconds: float, **options: Any) -> Work:
    """Return an activity of this duration."""

    async def work() -> None:
        with send_heartbeats(**options):
            await asyncio.sleep(seconds)

    return work


def speaks(seconds: float, interval_s: float | None, each_s: float = 0.02) -> Work:
    """Return an activity that constantly records new details."""

    async def work() -> None:
        with send_heartbeats(details_interval_s=interval_s) as heart:
            for number in range(round(seconds / each_s)):
                heart.record(number)
                await asyncio.sleep(each_s)

    return work


@pytest.mark.parametrize(
    ("timeout_s", "lasts_s", "within_s", "times"),
    [
        (30, 5, None, []),
        (30, 9.9, None, []),
        (30, 45, None, [10, 20, 30, 35.5]),
        (3, 4.5, None, [1, 2, 3, 3.55]),
        (0.9, 1, None, [0.3, 0.6, 0.9]),
        (0, 25, None, [10, 20]),
        (30, 8, 2, [2, 4, 6]),
        (30, 25, 60, [10, 20]),
        (30, 0.12, 0, [0.05, 0.1]),
    ],
)
def test_plain_heartbeats_are_a_third_of_the_timeout_apart(
    timeout_s: float, lasts_s: float, within_s: float | None, times: list[float]
) -> None:
    """Plain heartbeats are sent at a third of the timeout, so a call of 5 s sends none.

    `cancel_within` shortens the interval, to at least 0.05 s.
    """
    within = None if within_s is None else timedelta(seconds=within_s)
    assert Outside(timeout_s).run(lasts(lasts_s, cancel_within=within)).times() == pytest.approx(times)


def test_streamed_text_of_20_s_takes_41_heartbeats() -> None:
    """The first text is sent at once, and then the newest text every half second."""
    sent = Outside().run(speaks(20, 0.5)).sent
    assert [at for _, at, _ in sent] == pytest.approx([number / 2 for number in range(len(sent))], abs=0.3)
    assert len(sent) <= 41
    assert sent[-1][2][0] >= 970


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("work", [lasts(600), speaks(600, 0.5), speaks(600, 7, 3), speaks(600, 99, 2)])
def test_the_sdk_sends_a_heartbeat_before_it_would_cancel_the_activity(work: Work, *, is_away: bool) -> None:
    """The SDK's own heartbeat is sent before the SDK would cancel the activity.

    The SDK holds back others for 24 s, and cancels after 35 s in which none has ended. If the server is away, requests
    end only at their time limit, and the SDK's heartbeat after more than 6 s.
    """
    outside = Outside()
    outside.is_away = is_away
    outside.run(work)
    assert len(outside.times("sdk")) > 20
    assert all(24 < after - before <= 25.6 for before, after in pairwise(outside.times("sdk")))
    assert is_away or max(after - before for before, after in pairwise(outside.times())) <= 10.1


def test_an_activity_that_a_request_finds_canceled_reports_that_itself() -> None:
    """The activity reports its cancellation, because the SDK does not know of it.

    While the activity cleans up, later requests change nothing.
    """
    outside, noticed = Outside(answers={2: CANCELED, 3: CANCELED, 4: CANCELED}), list[float]()

    async def work() -> None:
        async with track_activity():
            with send_heartbeats():
                try:
                    await asyncio.sleep(60)
                finally:
                    noticed.append(outside.clock.now)
                    await asyncio.sleep(25)

    with pytest.raises(BaseException, match=r"^$") as raised:
        outside.run(work)
    assert type(raised.value).__name__ == "_CompleteAsyncError"
    assert (noticed, outside.canceled_at, outside.times("sdk")) == ([20], 45, [10])


@pytest.mark.parametrize(
    "answer",
    [
        RPCError("gone", RPCStatusCode.NOT_FOUND, b""),
        ValueError("a codec"),
        AsyncActivityCancelledError(ActivityCancellationDetails(paused=True)),
        AsyncActivityCancelledError(ActivityCancellationDetails(reset=True)),
    ],
)
def test_what_else_a_request_finds_is_left_to_the_sdk(answer: Exception) -> None:
    """Other errors of a request are left to the SDK, whose own heartbeat follows and handles them."""
    outside = Outside(answers={2: answer}).run(lasts(45))
    assert (outside.times(), outside.times("sdk")) == ([10, 20, 30, 35.5], [10, 35.5])


def test_nothing_is_sent_for_a_local_activity_or_one_that_has_ended() -> None:
    """Local activities send no heartbeats, because the server does not know them.

    An ended activity sends none either, although its thread may still have details.
    """

    async def work() -> None:
        with send_heartbeats() as heart:
            await asyncio.sleep(1)
        heart.record("late")
        await asyncio.sleep(60)

    assert Outside().run(work).sent == Outside().run(speaks(45, 1), is_local=True).sent == []


@pytest.mark.parametrize("steps", range(6))
def test_an_activity_that_ends_while_its_last_details_arrive_sends_no_more(steps: int) -> None:
    """Heartbeats stop with the activity, even if it ends while its last details are sent.

    They would otherwise continue until the worker stops.
    """

    async def work() -> None:
        with send_heartbeats(details_interval_s=0.5) as heart:
            heart.record("first")
            await asyncio.sleep(1)
            heart.record("last")
            for _ in range(steps):
                await asyncio.sleep(0)
        await asyncio.sleep(60)

    assert max(Outside().run(work).times()) <= 1


def test_pending_details_are_given_to_the_sdk_when_an_activity_fails() -> None:
    """The SDK sends the last details before it reports a failure, so that the next attempt has them.

    Only the first details are sent at once.
    """

    async def work() -> None:
        with send_heartbeats() as heart:
            for step in range(1_000):
                heart.record(step)
                await asyncio.sleep(0)
            raise ConnectionError

    outside = Outside()
    with pytest.raises(ConnectionError):
        outside.run(work)
    assert len(outside.sent) == 2
    assert outside.sent[-1] == ("sdk", 0, (999,))
