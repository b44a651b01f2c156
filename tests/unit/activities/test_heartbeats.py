"""When an activity sends heartbeats, and which of them the SDK sends, on a clock that does not wait."""

import asyncio
import dataclasses
import selectors
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Self, cast

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from waystation.activities.activity_attempt import CanceledByHeartbeat, Heartbeater, send_heartbeats, track_activity


class Jump(selectors.DefaultSelector):
    """A selector that advances its clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready."""
        self.now += timeout or 0.0
        return super().select(0)


class Outside:
    """The SDK, which cancels an activity after the timeout and 5 s, and the server: both note the heartbeats."""

    def __init__(self, timeout_s: float = 30, answers: dict[int, Exception] | None = None) -> None:
        self.timeout_s, self.answers, self.sent = timeout_s, answers or {}, list[tuple[str, float, tuple[Any, ...]]]()
        self.canceled_at: float | None = None
        self.selector = Jump()

    def get_async_activity_handle(self, *, task_token: bytes) -> Self:
        """Return a handle for the activity."""
        return self

    def with_context(self, _: object) -> Self:
        """Return the same handle."""
        return self

    async def heartbeat(self, *details: object, rpc_timeout: timedelta) -> None:
        """Note a request. Some are not answered as usual."""
        self.note("request", *details)
        if answer := self.answers.get(len(self.sent)):
            raise answer

    async def report_cancellation(self) -> None:
        """Note that the activity reports its cancellation."""
        self.canceled_at = self.now

    def note(self, by: str, *details: object) -> None:
        """Note a heartbeat."""
        self.sent.append((by, round(self.now, 2), details))

    @property
    def now(self) -> float:
        """The time on the clock that does not wait."""
        return self.selector.now

    def times(self, by: str = "") -> list[float]:
        """Return when heartbeats were sent."""
        return [at for sender, at, _ in self.sent if by in sender]

    def run(self, work: Callable[[], Awaitable[None]], **info: Any) -> None:
        """Run an activity."""
        environment = ActivityEnvironment(cast("Client", self))
        environment.on_heartbeat = lambda *details: self.note("sdk", *details)
        given = {"heartbeat_timeout": timedelta(seconds=self.timeout_s), **info}
        environment.info = dataclasses.replace(environment.info, **given)
        loop = asyncio.SelectorEventLoop(self.selector)
        loop.time = lambda: self.now  # type: ignore[method-assign]  # the clock of `asyncio`
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(cast("Any", environment.run(work)))


def lasts(seconds: float, begin: Callable[[Heartbeater], None] = lambda _: None) -> Callable[[], Awaitable[None]]:
    """Return an activity that takes this long."""

    async def work() -> None:
        with send_heartbeats() as heart:
            begin(heart)
            await asyncio.sleep(seconds)

    return work


def speaks(seconds: float, interval_s: float, each_s: float = 0.02) -> Callable[[], Awaitable[None]]:
    """Return an activity that has a new word all the time."""

    async def work() -> None:
        with send_heartbeats(details_interval_s=interval_s) as heart:
            for number in range(round(seconds / each_s)):
                heart.record(number)
                await asyncio.sleep(each_s)

    return work


@pytest.mark.parametrize(
    ("timeout_s", "lasts_s", "times"),
    [
        (30, 5, []),
        (30, 9.9, []),
        (30, 45, [10, 20, 30, 40]),
        (3, 4.5, [1, 2, 3, 4]),
        (0.9, 1, [0.3, 0.6, 0.9]),
        (0, 25, [10, 20]),
    ],
)
def test_plain_heartbeats_are_a_third_of_the_timeout_apart(
    timeout_s: float, lasts_s: float, times: list[float]
) -> None:
    """The first is not sent before, so a model call of 5 s sends none. Without a timeout, they are 10 s apart."""
    outside = Outside(timeout_s)
    outside.run(lasts(lasts_s))
    assert outside.times() == pytest.approx(times)


def test_streamed_text_of_20_s_takes_41_heartbeats() -> None:
    """The first text is sent at once, and then the newest every half a second."""
    outside = Outside()
    outside.run(speaks(20, 0.5))
    assert outside.times()[0] == 0
    assert len(outside.sent) <= 41
    assert {round(b - a, 1) for a, b in pairwise(outside.times())} == {0.5}
    assert outside.sent[-1][2][0] >= 970


@pytest.mark.parametrize("work", [lasts(600), speaks(600, 0.5), speaks(600, 7, 3), speaks(600, 99, 2)])
def test_the_sdk_sends_one_heartbeat_in_each_timeout(work: Callable[[], Awaitable[None]]) -> None:
    """It neither holds one back, for which it needs a pause of 24 s, nor cancels the activity for lack of one."""
    outside = Outside()
    outside.run(work)
    own, pauses = (
        [0.0, *outside.times("sdk")],
        [b - a for a, b in pairwise(outside.times())],
    )
    assert all(24 < b - a <= 30.1 for a, b in pairwise(own[1:]))
    assert max(pauses) <= 10.1


def test_a_cancellation_that_has_to_arrive_sooner_costs_more_heartbeats() -> None:
    """`cancel_within` shortens the interval, and never lengthens it or goes below 0.05 s."""
    for seconds, count in ((1, 20), (60, 2), (0, 400)):
        outside = Outside()
        outside.run(lasts(20.5, lambda heart, within=timedelta(seconds=seconds): heart.ask_every(within)))  # type: ignore[misc]
        assert len(outside.sent) == pytest.approx(count, abs=10 if not seconds else 0)


def test_an_activity_that_a_request_finds_canceled_reports_that_itself() -> None:
    """The SDK does not know of the cancellation. While the activity cleans up, later requests change nothing."""
    canceled = AsyncActivityCancelledError(ActivityCancellationDetails(cancel_requested=True))
    outside, resisted = Outside(answers={2: canceled, 3: canceled, 4: canceled}), list[float]()

    async def work() -> None:
        async with track_activity():
            with send_heartbeats():
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    resisted.append(outside.now)
                    await asyncio.sleep(25)
                    raise

    with pytest.raises(BaseException, match=r"^$") as raised:
        outside.run(work)
    assert type(raised.value).__name__ == "_CompleteAsyncError"
    assert (resisted, outside.canceled_at) == ([20], 45)
    assert outside.times("sdk") == [10]


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
    """The next heartbeats follow, and one of them is the SDK's, which knows what to do."""
    outside = Outside(answers={2: answer})
    outside.run(lasts(45))
    assert outside.times() == [10, 20, 30, 40]
    assert outside.times("sdk") == [10, 40]


def test_nothing_is_sent_after_an_activity_ends_or_for_a_local_one() -> None:
    """A thread that was left behind may still have news. The server does not know local activities."""
    hearts: list[Heartbeater] = []

    async def work() -> None:
        await lasts(15, hearts.append)()
        hearts[0].record("late")
        await asyncio.sleep(60)

    outside = Outside()
    outside.run(work)
    assert outside.times() == [10]
    outside = Outside()
    outside.run(speaks(45, 1), is_local=True)
    assert outside.sent == []


def test_pending_details_are_given_to_the_sdk_when_an_activity_fails() -> None:
    """The SDK sends them before it reports the failure, and the next attempt reads them."""

    async def work() -> None:
        with send_heartbeats() as heart:
            for step in range(1_000):
                heart.record(step)
                await asyncio.sleep(0)
            raise ConnectionError

    outside = Outside()
    with pytest.raises(ConnectionError):
        outside.run(work)
    assert [details for _, _, details in outside.sent][-1] == (999,)
    assert len(outside.sent) == 2


def test_a_mark_that_finds_the_call_canceled_does_not_start_its_tool() -> None:
    """The mark of a held call is confirmed before its tool starts."""
    canceled = AsyncActivityCancelledError(ActivityCancellationDetails(cancel_requested=True))
    started: list[Sequence[str]] = []

    async def work() -> None:
        with send_heartbeats() as heart:
            heart.pause()
            await heart.mark("started")
            await asyncio.sleep(0)
            started.append("started")

    outside = Outside(answers={1: canceled})
    with pytest.raises(CanceledByHeartbeat):
        outside.run(work)
    assert started == []
    assert outside.sent == [("request", 0, ("started",))]
