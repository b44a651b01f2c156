"""One budget for all requests to visibility, and one answer for everyone who asks the same."""

import asyncio
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from waystation.web import shared_reads
from waystation.web.shared_reads import LONGEST_WAIT_S, OLDEST_S, SharedReads, current_age_s, record_reads


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def monotonic(self) -> float:
        """Return the time, in place of the module `time`."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now += seconds


class Server:
    """Visibility that counts its answers."""

    def __init__(self, reads: SharedReads) -> None:
        self.reads, self.answers, self.problem = reads, 0, RPCStatusCode.OK

    async def read(self) -> int:
        """Send one request within the budget."""
        await self.reads.wait()
        if self.problem is not RPCStatusCode.OK:
            raise RPCError("", self.problem, b"")
        self.answers += 1
        return self.answers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the reads and of their ages."""
    clock = Clock()
    monkeypatch.setattr(shared_reads, "time", clock)
    return clock


async def test_no_second_has_more_requests_than_the_budget(clock: Clock) -> None:
    """However many pages ask, and whatever they ask."""
    reads, sent = SharedReads(3, clock=clock, sleep=clock.sleep), list[float]()
    for _ in range(12):
        await reads.wait()
        sent.append(clock.now)
    assert all(later - earlier >= 1.0 for earlier, later in zip(sent, sent[3:], strict=False))
    assert sent[-1] - sent[0] == 3.0


async def test_requests_at_the_same_time_share_an_answer(clock: Clock) -> None:
    """A different question is not answered with it."""
    reads = SharedReads(clock=clock, sleep=clock.sleep)
    server = Server(reads)
    keys = ["mine"] * 20 + ["yours"]
    assert await asyncio.gather(*(reads.read(key, server.read) for key in keys)) == [1] * 20 + [2]


@pytest.mark.parametrize(
    ("age_s", "spent", "answer", "shown_age"),
    [(0.5, False, 1, 0), (12.0, False, 2, 0), (12.0, True, 1, 12), (OLDEST_S + 1, True, 2, 0)],
)
async def test_an_earlier_answer_is_used_while_the_budget_is_spent(
    clock: Clock, age_s: float, spent: bool, answer: int, shown_age: int
) -> None:
    """The page says how old it is. An answer of more than a minute is not used any more."""
    reads = SharedReads(1, clock=clock, sleep=clock.sleep)
    server = Server(reads)
    await reads.read("list", server.read)
    clock.now += age_s
    if spent:
        await reads.wait()
    record_reads()
    assert (await reads.read("list", server.read), current_age_s()) == (answer, shown_age)


@pytest.mark.parametrize(
    ("status", "known", "fails"),
    [
        (RPCStatusCode.RESOURCE_EXHAUSTED, True, False),
        (RPCStatusCode.RESOURCE_EXHAUSTED, False, True),
        (RPCStatusCode.UNAVAILABLE, True, True),
    ],
)
async def test_an_earlier_answer_is_used_while_the_server_refuses_more(
    clock: Clock, status: RPCStatusCode, known: bool, fails: bool
) -> None:
    """Other clients of the namespace may have used its budget. A server that is away is another matter."""
    reads = SharedReads(clock=clock, sleep=clock.sleep)
    server = Server(reads)
    if known:
        await reads.read("list", server.read)
    clock.now += 30
    server.problem = status
    read = reads.read("list", server.read)
    if fails:
        with pytest.raises(RPCError):
            await read
    else:
        assert await read == 1


async def test_requests_do_not_queue_for_longer_than_a_page_may_take(clock: Clock) -> None:
    """Otherwise, somebody who asks for many lists and does not wait would shut everyone out."""

    async def leave(_: float) -> Any:
        raise asyncio.CancelledError

    reads = SharedReads(2, clock=clock, sleep=leave)
    refused = 0
    for _ in range(100):
        try:
            await reads.wait()
        except RPCError as error:
            refused += error.status is RPCStatusCode.RESOURCE_EXHAUSTED
        except asyncio.CancelledError:
            pass
    assert 100 - refused == 2 * (LONGEST_WAIT_S + 1)
