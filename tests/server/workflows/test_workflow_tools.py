"""Workflows and Nexus operations of the user as tools."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nexusrpc
import pytest
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.worker import Worker

from tests.server.conftest import Serve
from tests.server.user_workflow import Onboarding, Order, refuse
from waystation import Agent, ApprovalPolicy, InvocationError, NexusTool, WorkflowTool
from waystation.replay import redact
from waystation.testing import AgentEnvironment, ScriptedModel, calls, responses, says

CUSTOMER = {"type": "object", "properties": {"customer": {"type": "string"}}, "required": ["customer"]}
seen: list[Any] = []


@nexusrpc.handler.service_handler(name="quotes")
class Quotes:
    """A service of another team."""

    @nexusrpc.handler.sync_operation
    async def quote(self, _: nexusrpc.handler.StartOperationContext, params: dict[str, Any]) -> dict[str, Any]:
        """Return a price."""
        seen.append(params)
        if params["customer"] == "nobody":
            raise nexusrpc.HandlerError("no such customer", type=nexusrpc.HandlerErrorType.NOT_FOUND)
        return {"cents": 100}


@asynccontextmanager
async def users_worker(env: AgentEnvironment, *, services: Any = ()) -> AsyncIterator[str]:
    """Run a worker of the user, and an endpoint of the same name that leads to it."""
    seen.clear()
    queue = f"{env.client.task_queue}-users"
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace=env.temporal.namespace, task_queue=queue))
    if services:
        request = CreateNexusEndpointRequest(spec=EndpointSpec(name=queue, target=target))
        await env.temporal.operator_service.create_nexus_endpoint(request)
    workflows = [Onboarding, Order]
    async with Worker(
        env.temporal, task_queue=queue, workflows=workflows, activities=[refuse], nexus_service_handlers=services
    ):
        yield queue


async def test_a_workflow_of_the_user_is_a_tool(serve: Serve) -> None:
    """It is a child of the invocation that can wait for a long time, here for a signal; its result is the response."""
    model = ScriptedModel(calls(("Onboarding", {"customer": "ada"})), says("done"))
    tool = WorkflowTool("Onboarding", schema=CUSTOMER)
    async with serve(Agent(name="clerk", model=model, tools=[tool])) as env, users_worker(env) as tool.task_queue:
        invocation = await env.client.start("clerk", "hi")
        child = env.temporal.get_workflow_handle(f"{invocation.id}/fc-1")
        await signal(child, "sign", "dana")
        assert (await invocation.result()).text == "done"
    assert responses(model.requests[-1]) == [("Onboarding", {"customer": "ada", "signed_by": "dana"})]


async def test_an_approved_workflow_starts_once(serve: Serve) -> None:
    """A tool activity verifies the approval first."""
    model = ScriptedModel(calls(("Onboarding", {"customer": "ada"})), says("done"))
    tool = WorkflowTool("Onboarding", schema=CUSTOMER, approval=ApprovalPolicy())
    async with serve(Agent(name="clerk", model=model, tools=[tool])) as env, users_worker(env) as tool.task_queue:
        invocation = await env.client.start("clerk", "hi")
        while not await invocation.pending():
            await asyncio.sleep(0.01)
        await invocation.approve("fc-1")
        await signal(env.temporal.get_workflow_handle(f"{invocation.id}/fc-1~1"), "sign", "dana")
        await invocation.result()
    assert responses(model.requests[-1]) == [("Onboarding", {"customer": "ada", "signed_by": "dana"})]


async def test_the_cause_of_a_workflows_failure_reaches_the_model(serve: Serve) -> None:
    """The workflow fails because its own activity failed; the response names that activity's error."""
    model = ScriptedModel(calls(("Order", {})), says("done"))
    tool = WorkflowTool("Order")
    async with serve(Agent(name="clerk", model=model, tools=[tool])) as env, users_worker(env) as tool.task_queue:
        await env.client.run("clerk", "hi")
    assert responses(model.requests[-1]) == [("Order", {"error": "sold out", "error_type": "SoldOut"})]


async def test_a_canceled_invocation_cancels_the_workflow_that_it_runs(serve: Serve) -> None:
    """The workflow is canceled before the invocation ends."""
    model = ScriptedModel(calls(("Onboarding", {"customer": "ada"})))
    tool = WorkflowTool("Onboarding", schema=CUSTOMER)
    async with serve(Agent(name="clerk", model=model, tools=[tool])) as env, users_worker(env) as tool.task_queue:
        invocation = await env.client.start("clerk", "hi")
        child = env.temporal.get_workflow_handle(f"{invocation.id}/fc-1")
        await signal(child, "note", "started")
        await invocation.cancel()
        with pytest.raises((InvocationError, WorkflowFailureError)):
            await invocation.result()
        assert (await child.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_a_nexus_operation_is_a_tool(serve: Serve) -> None:
    """Its result is the response; an error of its handler becomes an error response."""
    model = ScriptedModel(calls(("quote", {"customer": "ada"}), ("quote", {"customer": "nobody"})), says("done"))
    tool = NexusTool("quote", endpoint="unknown", service="quotes", schema=CUSTOMER)
    agent = Agent(name="clerk", model=model, tools=[tool])
    async with serve(agent) as env, users_worker(env, services=[Quotes()]) as tool.endpoint:
        await env.client.run("clerk", "hi")
    (_, first), (_, second) = responses(model.requests[-1])
    assert first == {"cents": 100}
    assert second["error_type"] in ("HandlerError", "Error", "ApplicationError")
    assert sorted(params["customer"] for params in seen) == ["ada", "nobody"]


async def signal(workflow: Any, name: str, value: str) -> None:
    """Send a signal to a workflow that may not exist yet."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await workflow.signal(name, value)  # type: ignore[no-any-return]
            except Exception:  # noqa: BLE001  # not started yet
                await asyncio.sleep(0.02)


async def test_histories_with_code_of_the_user_can_be_redacted(serve: Serve) -> None:
    """The redacted history has no text of the arguments and results, and the engine handles it in the same way."""
    model = ScriptedModel(calls(("quote", {"customer": "ada lovelace"})), says("done"))
    tool = NexusTool("quote", endpoint="unknown", service="quotes", schema=CUSTOMER)
    agent = Agent(name="clerk", model=model, tools=[tool])
    async with serve(agent) as env, users_worker(env, services=[Quotes()]) as tool.endpoint:
        invocation = await env.client.start("clerk", "hi")
        await invocation.result()
        redacted = await redact(await invocation.saved(), ["text"])
    events = [event.SerializeToString() for run in redacted.histories for event in run.events]
    assert not any(b"lovelace" in event for event in events)
