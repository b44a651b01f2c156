"""Many invocations use the same scope at the same time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.server.conftest import Serve
from tests.server.scopes.looking import agent
from waystation.activities import scope_delivery
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.core import RefusedDelta, ScopeDelta, app_scope, user_scope
from waystation.embedded import EmbeddedServer
from waystation.history import ScopeReader
from waystation.history.history_fetch import fetch_events_after
from waystation.testing import says
from waystation.workflows import scope
from waystation.workflows.scope import AgentScope

WRITERS = 8


async def test_writes_that_wait_share_a_signal(serve: Serve, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that arrive while a signal is on its way to the scope go together in the next one."""
    writers, signals, all_wait = 0, list[int](), asyncio.Event()
    deliver, send = ScopeKeeper._deliver_to, ScopeKeeper._send

    async def delivering(self: ScopeKeeper, *given: Any) -> Any:
        nonlocal writers
        if (writers := writers + 1) == WRITERS:
            asyncio.get_running_loop().call_soon(all_wait.set)
        return await deliver(self, *given)

    async def sending(self: ScopeKeeper, scope_id: str, app: str, deltas: Sequence[ScopeDelta]) -> None:
        signals.append(len(deltas))
        await all_wait.wait()
        await send(self, scope_id, app, deltas)

    monkeypatch.setattr(ScopeKeeper, "_deliver_to", delivering)
    monkeypatch.setattr(ScopeKeeper, "_send", sending)
    async with serve(agent(*[says("ok")] * WRITERS)) as env:
        await asyncio.gather(*(env.client.run("clerk", "go", app=app, state={f"app:{n}": n}) for n in range(WRITERS)))
        assert await env.client.state.app(app=app) == {f"app:{n}": n for n in range(WRITERS)}
    assert signals == [1, WRITERS - 1]


async def test_a_canceled_activity_does_not_cancel_writes_that_share_its_signal(
    serve: Serve, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal is sent once, with the writes of all activities, and each activity gets its own refusals."""
    sent: list[Sequence[ScopeDelta]] = []
    deltas = [ScopeDelta(id=f"i{number}/e1") for number in range(3)]

    async def sending(self: ScopeKeeper, scope_id: str, app: str, deltas: Sequence[ScopeDelta]) -> None:
        sent.append(deltas)

    async def refusing(*_: object) -> list[RefusedDelta]:
        return [RefusedDelta(id="i2/e1", reason="no"), RefusedDelta(id="i3/e1", reason="no")]

    monkeypatch.setattr(ScopeKeeper, "_send", sending)
    monkeypatch.setattr(ScopeKeeper, "_wait_for_refusals", refusing)
    async with serve() as env:
        keeper: Any = ScopeKeeper(env.temporal, logs=None)  # type: ignore[arg-type]  # it reads no log
        tasks = [asyncio.ensure_future(keeper._send_together(app_scope(app), app, [delta])) for delta in deltas]
        asyncio.get_running_loop().call_soon(tasks[0].cancel)
        _, *refused = await asyncio.gather(*tasks, return_exceptions=True)
    assert (tasks[0].cancelled(), refused) == (True, [[], [RefusedDelta(id="i2/e1", reason="no")]])
    assert sent == [deltas]


@pytest.mark.parametrize(
    ("limits", "max_bytes"),
    [({"history.maximumSignalsPerExecution": scope.MAX_SIGNALS}, 10**6), ({}, 1_000)],
    ids=["signals", "bytes"],
)
async def test_a_write_waits_while_the_scope_accepts_no_more(
    serve: Serve, app: str, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], max_bytes: int
) -> None:
    """A scope without a worker does not grow until the server terminates it. A worker that is back stores the write."""
    monkeypatch.setattr(scope_delivery, "MAX_RUN_BYTES", max_bytes)
    async with EmbeddedServer(dynamic_config=limits) as server, serve(agent(says("ok")), server=server) as env:
        id, queue = user_scope(app, "user"), "without-a-worker"
        full = await env.temporal.start_workflow("AgentScope", id=id, task_queue=queue)
        for number in range(scope.MAX_SIGNALS):
            await full.signal("apply", {"id": f"other/e{number}", "set": {"user:b": number}})
        invocation = await env.client.start("clerk", "go", app=app, state={"user:a": 1})
        handle = env.temporal.get_workflow_handle(invocation.id)
        while not any(
            activity.attempt > 1 for activity in (await handle.describe()).raw_description.pending_activities
        ):
            assert (await handle.describe()).close_time is None
            await asyncio.sleep(0.05)
        runner = UnsandboxedWorkflowRunner()
        async with Worker(env.temporal, task_queue=queue, workflows=[AgentScope], workflow_runner=runner):
            await invocation.result()
            assert await env.client.state.user(app=app) == {"user:a": 1, "user:b": scope.MAX_SIGNALS - 1}


async def test_reads_that_wait_share_a_request(serve: Serve, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All reads that begin during a request share the next one, and a read skips the runs before the latest."""
    requests: list[str] = []

    async def fetching(client: Any, workflow_id: str, run_id: str, known: int) -> Any:
        requests.append(run_id)
        return await fetch_events_after(client, workflow_id, run_id, known)

    monkeypatch.setattr("waystation.history.scope_reader.fetch_events_after", fetching)
    async with serve(agent(says("ok"))) as env:
        await env.client.run("clerk", "go", app=app, state={"app:n": 0})
        reader, id = ScopeReader(env.temporal), app_scope(app)
        requests.clear()
        folds = await asyncio.gather(*(reader.read(id) for _ in range(WRITERS)))
        assert ([fold.state for fold in folds], len(requests)) == ([{"app:n": 0}] * WRITERS, 2)
        monkeypatch.setattr(scope, "MAX_SIGNALS", 1)
        handle = env.temporal.get_workflow_handle(id)
        for number in range(1, 4):
            run = (await handle.describe()).run_id
            await handle.signal("apply", {"id": f"other/e{number}", "set": {"app:n": number}})
            while (await handle.describe()).run_id == run:
                await asyncio.sleep(0.02)
        requests.clear()
        assert ((await reader.read(id)).state, len(requests)) == ({"app:n": 3}, 2)
