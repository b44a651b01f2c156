"""Workflows of the user run agents, in a worker that serves both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import Priority
from temporalio.exceptions import ApplicationError, ChildWorkflowError
from temporalio.worker import Worker

from tests.server.user_workflow import Ask, Decision, Settle
from waystation import Agent, AgentClient, WorkflowTool
from waystation.core.contract import Settings, Stores
from waystation.core.ids import app_key, fairness_key
from waystation.embedded import EmbeddedServer
from waystation.testing import ScriptedModel, assert_invocation_holds, calls, responses, says
from waystation.tools import FunctionTool
from waystation.worker import WORKER_OPTIONS, WaystationPlugin


@asynccontextmanager
async def serving(server: EmbeddedServer, store: Path, agent: Agent, *others: Agent) -> AsyncIterator[AgentClient]:
    """Serve agents and the user's workflows in one worker."""
    plugin = WaystationPlugin([agent, *others], settings=Settings(stores=Stores(payloads=store)))
    client = await Client.connect(server.address, plugins=[plugin])
    queue = f"from-workflows-{agent.name}"
    async with Worker(client, task_queue=queue, workflows=[Settle, Ask], **WORKER_OPTIONS):
        yield AgentClient(client, task_queue=queue)


async def test_a_workflow_gets_the_typed_answer_of_an_agent(server: EmbeddedServer, tmp_path: Path) -> None:
    """The agent is a child workflow, and its own history is like any other."""
    judge = Agent(name="judge", model=ScriptedModel(says('{"approved": true, "cents": 7}')), output_schema=Decision)
    async with serving(server, tmp_path, judge) as client:
        started = await client.temporal.start_workflow(Settle.run, "A1", id="settle", task_queue=client.task_queue)
        assert await started.result() == 7
        await assert_invocation_holds(client.invocation("settle/judge"))


@pytest.mark.parametrize("key", ["acme-batch", None])
async def test_an_agent_has_a_fairness_key(server: EmbeddedServer, tmp_path: Path, key: str | None) -> None:
    """The agent inherits its workflow's key, or has the one that a client would give it, and inherits its priority."""
    judge = Agent(name="judge", model=ScriptedModel(says('{"approved": true, "cents": 7}')), output_schema=Decision)
    async with serving(server, tmp_path, judge) as client:
        own = Priority(priority_key=2, fairness_key=key)
        started = await client.temporal.start_workflow(
            Settle.run, "A1", id=f"fair-{key}", task_queue=client.task_queue, priority=own
        )
        await started.result()
        started_event, *_ = (await client.invocation(f"fair-{key}/judge").handle.fetch_history()).events
    priority = started_event.workflow_execution_started_event_attributes.priority
    assert priority.fairness_key == (key or fairness_key(app_key("waystation", None), "user"))
    assert priority.priority_key == 2


async def test_an_agent_run_by_a_tools_workflow_has_the_tenant_of_the_calling_agent(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The called agent has the tenant, although the workflow between the agents knows none."""

    def ask(agent: str) -> None:
        """Ask an agent."""

    model = ScriptedModel(calls(("Ask", {"agent": "judge"})), says("done"))
    judge = Agent(name="judge", model=ScriptedModel(says("granted")))
    clerk = Agent(name="clerk", model=model, tools=[WorkflowTool("Ask", schema=ask)])
    async with serving(server, tmp_path, clerk, judge) as client:
        invocation = await client.start("clerk", "hi", tenant="acme")
        await invocation.result()
        [(_, response)] = responses(model.requests[-1])
        inner = await client.invocation(f"{invocation.id}/fc-1/agent").log()
    assert response == {"result": "granted"}
    assert inner.state.input is not None
    assert inner.state.input.tenant == "acme"


async def test_cancelling_a_workflow_removes_its_agents_call_from_the_inbox(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The agent is canceled with its parent; until then, its call is pending like any other."""

    def pay(cents: int) -> str:
        """Pay."""
        raise AssertionError

    model = ScriptedModel(calls(("pay", {"cents": 5})))
    payer = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serving(server, tmp_path, payer) as client:
        started = await client.temporal.start_workflow(Ask.run, "payer", id="ask", task_queue=client.task_queue)
        while [call.user_id for call in await client.pending(below="ask")] != ["dana"]:
            await asyncio.sleep(0.02)
        await started.cancel()
        with pytest.raises(WorkflowFailureError):
            await started.result()
        while await client.pending(below="ask"):
            await asyncio.sleep(0.02)
        assert (await client.invocation("ask/agent").handle.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_the_failure_of_an_agent_fails_its_workflow(server: EmbeddedServer, tmp_path: Path) -> None:
    """The cause is the agent's error, with its type."""
    async with serving(server, tmp_path, Agent(name="clerk", model=ScriptedModel())) as client:
        with pytest.raises(WorkflowFailureError) as failed:
            await client.temporal.execute_workflow(Ask.run, "stranger", id="fails", task_queue=client.task_queue)
    child = failed.value.cause
    assert isinstance(child, ChildWorkflowError)
    assert isinstance(child.cause, ApplicationError)
    assert child.cause.type == "UnknownAgent"
