"""`user:` and `app:` state of invocations that are terminated or reset."""

import asyncio

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError

from tests.server.conftest import Serve
from tests.server.scopes.looking import agent, remember
from waystation.client.agent_client import Invocation
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment, calls, says


async def test_a_session_tells_what_a_terminated_invocation_did_not(serve: Serve, app: str) -> None:
    """The session delivers the writes of a terminated invocation."""
    at_work, over = asyncio.Event(), asyncio.Event()

    async def linger() -> None:
        at_work.set()
        await over.wait()

    clerk = agent(calls(("remember", {"key": "user:a", "value": 1})), calls(("linger", {})), tools=(remember, linger))
    async with serve(clerk) as env:
        session = env.client.session(agent="clerk", session_id="one", app=app)
        sent = await session.send("go")
        try:
            await at_work.wait()
            assert await env.client.user_state(app=app) == {}
            await sent.handle.terminate()
            with pytest.raises(WorkflowFailureError):
                await sent.result()
            assert await _stored(env, app) == {"user:a": 1}
        finally:
            over.set()
        await session.close()


async def test_what_a_reset_invocation_writes_anew_counts(serve: Serve, app: str) -> None:
    """The writes after a reset count, although their events have the numbers of earlier ones; writes of others stay."""
    clerk = agent(
        calls(("remember", {"key": "user:a", "value": "first"})), says("ok"),
        calls(("remember", {"key": "user:a", "value": "anew"})), says("ok"),
    )  # fmt: skip
    async with serve(clerk) as env:
        invocation = await env.client.start("clerk", "go", app=app)
        await invocation.result()
        assert await env.client.user_state(app=app) == {"user:a": "first"}
        await _reset(env, invocation)
        assert await env.client.user_state(app=app) == {"user:a": "anew"}


async def _reset(env: AgentEnvironment, invocation: Invocation) -> None:
    """Reset an invocation to its beginning and wait for its end."""
    first_task = 4
    given = ResetWorkflowExecutionRequest(
        namespace=env.temporal.namespace,
        workflow_execution=WorkflowExecution(workflow_id=invocation.id),
        workflow_task_finish_event_id=first_task,
        request_id="again",
    )
    run_id = (await env.temporal.workflow_service.reset_workflow_execution(given)).run_id
    await env.temporal.get_workflow_handle(invocation.id, run_id=run_id).result()


async def _stored(env: AgentEnvironment, app: str) -> JsonObject:
    """Wait until a user has state, and return it."""
    async with asyncio.timeout(20):
        while not (state := await env.client.user_state(app=app)):
            await asyncio.sleep(0.02)
    return state
