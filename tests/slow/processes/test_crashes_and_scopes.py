"""Workers that are killed while they store the state of users lose no write and count none twice."""

import asyncio

from temporalio.client import WorkflowExecutionStatus

from tests.server.conftest import verify_tree
from tests.server.processes.workers import Place, plan
from tests.slow.processes.conftest import on_all_stores
from waystation.client.agent_client import AgentClient
from waystation.core.scope_state import user_scope
from waystation.history import read_json_payloads

INVOCATIONS = 30


@on_all_stores
async def test_writes_are_stored_once_whenever_workers_are_killed(place: Place, client: AgentClient) -> None:
    """Two workers in a row are killed while they store writes of invocations; a third one continues."""
    app = place.task_queue
    scope = client.temporal.get_workflow_handle(user_scope(app, "user"))

    async def sent() -> list[str]:
        """Return the IDs of the sent deltas, in order."""
        deltas = []
        async for event in scope.fetch_history_events():
            if event.HasField("workflow_execution_signaled_event_attributes"):
                for data in read_json_payloads(event.workflow_execution_signaled_event_attributes.input.payloads):
                    deltas.append(data.decode())
        return deltas

    async def over() -> int:
        """Return the number of completed invocations."""
        return [(await i.handle.describe()).status for i in invocations].count(WorkflowExecutionStatus.COMPLETED)

    plans = [plan([("remember", {"word": f"user:{n}"})]) for n in range(INVOCATIONS)]
    invocations = await asyncio.gather(*(client.start("planned", each, app=app) for each in plans))
    for killed_after in (1, INVOCATIONS // 2):
        async with place.worker() as worker:
            while await over() < killed_after:
                await asyncio.sleep(0.01)
            await worker.kill()
    async with place.worker():
        await asyncio.gather(*(invocation.result() for invocation in invocations))
        for invocation in invocations[:5]:
            await verify_tree(invocation)
        assert await scope.query("refused") == []
        assert set(await client.user_state(app=app)) == {f"user:{n}" for n in range(INVOCATIONS)}
        assert await scope.query("state") == await client.user_state(app=app)
    assert len(set(await sent())) == INVOCATIONS
