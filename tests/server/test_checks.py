"""The checks of invocations compare and replay them."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.worker import WorkflowRunner

from tests.agents import Till, payer
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, reject_and_finish, start_and_wait
from waystation.client.agent_client import Invocation
from waystation.core.log import Log
from waystation.testing import Replays, assert_invocation_holds, assert_projection_matches, checks
from waystation.testing.checks import StrictRunner, _ObservingRunner


class Overtaken(Invocation):
    """An invocation that continues right after its log was first read."""

    reads = 0

    async def log(self, history: WorkflowHistory | None = None) -> Log:
        """Return the earlier log."""
        log = await super().log(history)
        self.reads += 1
        if self.reads == 1:
            await approve_and_finish(self)
        return log


async def test_progress_between_two_reads_is_not_a_difference(serve: Serve) -> None:
    """Both sides are read again before a difference counts."""
    async with serve(payer(Till().pay)) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        overtaken = Overtaken(env.client, invocation.handle)
        await assert_projection_matches(overtaken)
        assert overtaken.reads == 2


@pytest.mark.parametrize("name", ["events", "state", "pending"])
async def test_a_lasting_difference_is_reported(serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A difference in any of the three compared parts is reported."""
    query = WorkflowHandle.query

    async def wrong(self: WorkflowHandle[object, object], asked: str, *args: object) -> object:
        return ([] if asked == "events" else {"x": 1}) if asked == name else await query(self, asked, *args)

    async with serve(payer(Till().pay)) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        with monkeypatch.context() as patched:
            patched.setattr(WorkflowHandle, "query", wrong)
            with pytest.raises(AssertionError, match="the workflow"):
                await assert_projection_matches(invocation)
        await reject_and_finish(invocation)


async def test_serving_calls_a_check_of_the_caller_with_every_invocation(serve: Serve) -> None:
    """The check replaces `assert_invocation_holds`."""
    checked: list[str] = []

    async def check(invocation: Invocation) -> None:
        checked.append(invocation.id)

    async with serve(payer(Till().pay), verify=check) as env:
        invocation = await env.client.start("payer", "go")
        await invocation.cancel()
    assert checked == [invocation.id]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replays", "runners"),
    [
        (Replays.STRICT, [_ObservingRunner, StrictRunner]),
        (Replays.PRODUCTION, [_ObservingRunner]),
    ],
)
async def test_an_invocation_is_replayed_as_requested(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, replays: Replays, runners: list[type[WorkflowRunner]]
) -> None:
    """The replay in the strict sandbox takes most of the time, so tests choose."""
    used: list[type[WorkflowRunner]] = []

    def noting(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def noted(history: WorkflowHistory, *, runner: WorkflowRunner, **options: Any) -> Any:
            used.append(type(runner))
            return await original(history, runner=runner, **options)

        return noted

    for name in ("replay", "divergence_of"):
        monkeypatch.setattr(checks, name, noting(getattr(checks, name)))
    async with serve(payer(Till().pay), verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        await assert_invocation_holds(invocation, replays=replays)
        await invocation.cancel()
    assert used == runners
