"""Many invocations use the same scope at the same time."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.server.conftest import Serve
from tests.server.scopes.looking import agent
from waystation.activities import scope_delivery
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.core.contract import InvocationInput
from waystation.core.scope_state import APP, ScopeDelta, app_scope, user_scope
from waystation.embedded import EmbeddedServer
from waystation.history import ScopeReader
from waystation.history.history_fetch import fetch_events_after
from waystation.testing import says
from waystation.workflows import scope
from waystation.workflows.scope import AgentScope

WRITERS = 8


async def test_writes_that_wait_share_a_signal(serve: Serve, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a canceled activity nor a write that can never be stored holds up the others."""
    sent, send, tasks = list[int](), ScopeKeeper._send, list[asyncio.Future[Any]]()

    async def sending(self: ScopeKeeper, scope_id: str, app: str, deltas: Sequence[ScopeDelta]) -> None:
        sent.append(len(deltas))
        tasks[1].cancel()
        await send(self, scope_id, app, deltas)

    monkeypatch.setattr(ScopeKeeper, "_send", sending)
    too_deep = json.loads("[" * 63 + "]" * 63)
    deltas = [ScopeDelta(id=f"i{n}/e1", set={f"{APP}{n}": n or too_deep}) for n in range(WRITERS)]
    async with serve() as env:
        keeper, environment = ScopeKeeper(env.temporal, cast(Any, None)), ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, task_queue=env.client.task_queue)
        started = InvocationInput(agent="clerk", app=app, message="go")
        log: Any = SimpleNamespace(state=SimpleNamespace(input=started), invocation_id="")
        tasks += [asyncio.ensure_future(environment.run(keeper._deliver_to, APP, log, [delta])) for delta in deltas]
        results: Any = await asyncio.gather(*tasks, return_exceptions=True)
        assert await env.client.app_state(app=app) == {f"app:{n}": n for n in range(1, WRITERS)}
    assert (len(results[0]), results[2:], tasks[1].cancelled(), sent) == (1, [[]] * (WRITERS - 2), True, [WRITERS - 1])


@pytest.mark.slow
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
        full = await env.temporal.start_workflow("AgentScope", id=user_scope(app, "user"), task_queue="no-worker")
        for number in range(scope.MAX_SIGNALS):
            await full.signal("apply", {"id": f"other/e{number}", "set": {"user:b": number}})
        invocation = await env.client.start("clerk", "go", app=app, state={"user:a": 1})
        handle = env.temporal.get_workflow_handle(invocation.id)
        while not any(
            activity.attempt > 1 for activity in (await handle.describe()).raw_description.pending_activities
        ):
            assert (await handle.describe()).close_time is None
            await asyncio.sleep(0.05)
        async with Worker(
            env.temporal, task_queue="no-worker", workflows=[AgentScope], workflow_runner=UnsandboxedWorkflowRunner()
        ):
            await invocation.result()
            assert await env.client.user_state(app=app) == {"user:a": 1, "user:b": scope.MAX_SIGNALS - 1}


@pytest.mark.slow
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
