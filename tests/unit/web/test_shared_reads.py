"""Requests to visibility share one budget, and equal requests share one answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from waystation.web import shared_reads
from waystation.web.shared_reads import LONGEST_WAIT_S, OLDEST_S, SharedReads, current_age_s, record_reads

EXHAUSTED, AWAY = RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNAVAILABLE


class Server:
    """A fake of visibility with a budget. Its clock moves only while a request waits."""

    def __init__(self, per_s: int) -> None:
        self.now, self.answers, self.problem = 1_000.0, 0, RPCStatusCode.OK
        self.reads = SharedReads(per_s, clock=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds

    async def read(self) -> int:
        """Send one request."""
        await self.reads.wait()
        if self.problem is not RPCStatusCode.OK:
            raise RPCError("", self.problem, b"")
        self.answers += 1
        return self.answers


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a server with a budget of three requests a second, and measure ages with its clock."""
    server = Server(3)
    monkeypatch.setattr(shared_reads, "time", SimpleNamespace(monotonic=lambda: server.now))
    return server


async def test_no_second_has_more_requests_than_the_budget(server: Server) -> None:
    """No second exceeds the budget, and requests wait no longer than necessary."""
    sent = list[float]()
    for _ in range(12):
        await server.reads.wait()
        sent.append(server.now - 1_000)
    assert sent == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_requests_at_the_same_time_share_an_answer(server: Server) -> None:
    """Requests with the same key share one answer, and another key gets its own."""
    keys = ["mine"] * 20 + ["yours"]
    assert await asyncio.gather(*(server.reads.read(key, server.read) for key in keys)) == [1] * 20 + [2]


async def test_requests_at_the_same_time_share_a_failure(server: Server) -> None:
    """A failure is shared, because twenty requests that each wait for a lost server would take minutes.

    The next request is sent again.
    """
    asked = list[float]()

    async def fail() -> int:
        asked.append(server.now)
        await asyncio.sleep(0)
        server.now += 10
        raise RPCError("", AWAY, b"")

    reads = (server.reads.read("list", fail) for _ in range(20))
    errors = await asyncio.gather(*reads, return_exceptions=True)
    assert ([type(error) for error in errors], asked) == ([RPCError] * 20, [1_000])
    assert await server.reads.read("list", server.read) == 1


@pytest.mark.parametrize(
    ("age_s", "spent", "problem", "answer", "shown_age"),
    [
        (0.5, 0, RPCStatusCode.OK, 1, 0),
        (12.0, 0, RPCStatusCode.OK, 2, 0),
        (12.0, 3, RPCStatusCode.OK, 1, 12),
        (OLDEST_S + 1, 3, RPCStatusCode.OK, 2, 0),
        (12.0, 0, EXHAUSTED, 1, 12),
        (OLDEST_S + 1, 0, EXHAUSTED, EXHAUSTED, 0),
        (12.0, 0, AWAY, AWAY, 0),
    ],
    ids=["fresh", "old", "budget spent", "too old", "the server's budget spent", "too old for it", "server away"],
)
async def test_an_earlier_answer_is_used_while_a_budget_is_spent(
    server: Server, age_s: float, spent: int, problem: RPCStatusCode, answer: Any, shown_age: int
) -> None:
    """An earlier answer replaces a request beyond the budget, and the page shows its age.

    Answers older than a minute are not used.
    """
    await server.reads.read("list", server.read)
    server.now, server.problem = server.now + age_s, problem
    for _ in range(spent):
        await server.reads.wait()
    record_reads()
    try:
        found: Any = await server.reads.read("list", server.read)
    except RPCError as error:
        found = error.status
    assert (found, current_age_s()) == (answer, shown_age)


async def test_requests_do_not_queue_for_longer_than_a_page_may_take(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that would wait too long fail, so that one client with many requests does not block the others."""
    monkeypatch.setattr(server.reads, "_sleep", lambda _: asyncio.sleep(0))
    results = await asyncio.gather(*(server.reads.wait() for _ in range(100)), return_exceptions=True)
    assert [result for result in results if result is None] == [None] * 3 * int(LONGEST_WAIT_S + 1)
