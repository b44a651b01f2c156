"""Workflows and Nexus operations of the user as tools."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nexusrpc
import pytest
from temporalio import nexus
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.worker import Worker

from tests.server.conftest import Serve
from tests.server.user_workflow import Onboarding, Order, refuse
from tests.steps import reset_run, start_and_finish, start_and_wait
from verification.cluster.temporal_cluster import create_namespace
from waystation import ActivityTool, Agent, ApprovalPolicy, Budget, InvocationError, NexusTool, WorkflowTool
from waystation.core.contract import Effect
from waystation.replay import redact
from waystation.testing import AgentEnvironment, ScriptedModel, calls, responses, says

CUSTOMER = {"type": "object", "properties": {"customer": {"type": "string"}}, "required": ["customer"]}
received: list[Any] = []


@nexusrpc.handler.service_handler(name="quotes")
class Quotes:
    """A service of another team."""

    @nexusrpc.handler.sync_operation
    async def quote(self, _: nexusrpc.handler.StartOperationContext, params: dict[str, Any]) -> dict[str, Any]:
        """Return a price."""
        received.append(params)
        if not params:
            raise nexusrpc.HandlerError("no customer", type=nexusrpc.HandlerErrorType.BAD_REQUEST)
        if params["customer"] == "nobody":
            raise nexusrpc.HandlerError("no such customer", type=nexusrpc.HandlerErrorType.NOT_FOUND)
        return {"cents": 100}

    @nexus.workflow_run_operation
    async def onboard(
        self, context: nexus.WorkflowRunOperationContext, params: dict[str, Any]
    ) -> nexus.WorkflowHandle[dict[str, Any]]:
        """Start a workflow and use its result as that of the operation."""
        return await context.start_workflow(Onboarding.run, params, id=f"onboards-{params['customer']}")


@asynccontextmanager
async def other_namespace(env: AgentEnvironment) -> AsyncIterator[tuple[str, Client]]:
    """Run a worker in another namespace. Yield the name of an endpoint that leads to it, and the worker's client."""
    address, name = env.temporal.service_client.config.target_host, f"of-{env.client.task_queue}"
    await create_namespace(address, name)
    other = await Client.connect(address, namespace=name)
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace=name, task_queue="sales"))
    request = CreateNexusEndpointRequest(spec=EndpointSpec(name=name, target=target))
    await env.temporal.operator_service.create_nexus_endpoint(request)
    async with Worker(other, task_queue="sales", workflows=[Onboarding], nexus_service_handlers=[Quotes()]):
        yield name, other


@asynccontextmanager
async def users_worker(env: AgentEnvironment, *, services: Any = ()) -> AsyncIterator[str]:
    """Run a worker of the user, and an endpoint with the same name that leads to it."""
    received.clear()
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
    """A workflow tool is a child of the invocation that can wait, here for a signal; its result is the response."""
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
    """The result of a Nexus operation is the response; an error of its handler becomes an error response."""
    model = ScriptedModel(calls(("quote", {"customer": "ada"}), ("quote", {"customer": "nobody"})), says("done"))
    tool = NexusTool("quote", endpoint="unknown", service="quotes", schema=CUSTOMER)
    agent = Agent(name="clerk", model=model, tools=[tool])
    async with serve(agent) as env, users_worker(env, services=[Quotes()]) as tool.endpoint:
        await env.client.run("clerk", "hi")
    (_, first), (_, second) = responses(model.requests[-1])
    assert first == {"cents": 100}
    assert second == {"error": "no such customer", "error_type": "NOT_FOUND"}
    assert sorted(params["customer"] for params in received) == ["ada", "nobody"]


async def test_a_call_waits_for_an_operation_of_another_namespace(serve: Serve) -> None:
    """The call is approved first. The operation then starts a workflow, whose result is the response."""
    model = ScriptedModel(calls(("onboard", {"customer": "ada"})), says("done"))
    tool = NexusTool("onboard", endpoint="unknown", service="quotes", schema=CUSTOMER, approval=ApprovalPolicy())
    async with serve(Agent(name="clerk", model=model, tools=[tool])) as env, other_namespace(env) as (name, other):
        tool.endpoint = name
        invocation = await start_and_wait(env.client.start("clerk", "hi"), "fc-1")
        assert not [run async for run in other.list_workflows()]
        await invocation.approve("fc-1")
        await signal(other.get_workflow_handle("onboards-ada"), "sign", "dana")
        await invocation.result()
    assert responses(model.requests[-1]) == [("onboard", {"customer": "ada", "signed_by": "dana"})]


async def test_a_canceled_invocation_cancels_an_operation_of_another_namespace(serve: Serve) -> None:
    """The workflow that the operation started ends before the invocation does."""
    model = ScriptedModel(calls(("onboard", {"customer": "ada"})))
    tool = NexusTool("onboard", endpoint="unknown", service="quotes", schema=CUSTOMER)
    async with serve(Agent(name="clerk", model=model, tools=[tool])) as env, other_namespace(env) as (name, other):
        tool.endpoint = name
        invocation = await env.client.start("clerk", "hi")
        operation = other.get_workflow_handle("onboards-ada")
        await signal(operation, "note", "started")
        await invocation.cancel()
        with pytest.raises((InvocationError, WorkflowFailureError)):
            await invocation.result()
        assert (await operation.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_a_budget_counts_calls_of_the_users_code(serve: Serve) -> None:
    """An activity, a workflow and a Nexus operation count as one tool call each; further calls do not run."""
    names = ["refuse", "Order", "quote"]
    model = ScriptedModel(calls(*((name, {}) for name in names * 2)), says("done"))
    activity, workflow = ActivityTool("refuse"), WorkflowTool("Order")
    operation = NexusTool("quote", endpoint="unknown", service="quotes", schema={"type": "object"})
    agent = Agent(name="clerk", model=model, tools=[activity, workflow, operation])
    async with serve(agent) as env, users_worker(env, services=[Quotes()]) as name:
        activity.task_queue = workflow.task_queue = operation.endpoint = name
        result = await env.client.run("clerk", "hi", budget=Budget(max_tool_calls=3))
    assert result.reason == "max_tool_calls: the limit of 3 tool calls is used up"
    kinds = [(name, response["error_type"]) for name, response in responses(model.requests[-1])]
    assert kinds[:3] == [("refuse", "SoldOut"), ("Order", "SoldOut"), ("quote", "BAD_REQUEST")]
    assert kinds[3:] == [(name, "BudgetExhausted") for name in names]


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_a_reset_finds_the_workflow_that_still_runs(serve: Serve, effect: Effect) -> None:
    """A workflow that still runs is not started again, and the model learns that the outcome is unknown."""
    model = ScriptedModel(calls(("Onboarding", {"customer": "ada"})), says("done"), says("done"))
    tool = WorkflowTool("Onboarding", schema=CUSTOMER, effect=effect)
    agent = Agent(name="clerk", model=model, tools=[tool])
    async with serve(agent, tasks_may_fail=True) as env, users_worker(env) as tool.task_queue:
        invocation = await env.client.start("clerk", "hi")
        child = env.temporal.get_workflow_handle(f"{invocation.id}/fc-1")
        await signal(child, "note", "started")
        await reset_run(env.temporal, await invocation.history(), 2)
        assert (await env.client.invocation(invocation.id).result()).text == "done"
        assert len([run async for run in env.temporal.list_workflows(f"WorkflowId = '{child.id}'")]) == 1
        assert (await child.describe()).status is WorkflowExecutionStatus.RUNNING
        await child.terminate()
    [(_, response)] = responses(model.requests[-1])
    assert response["error_type"] == "OutcomeUnknown"
    assert response["error"].startswith("The workflow of `Onboarding` already exists, for example from before a reset.")


@pytest.mark.parametrize(("effect", "error"), [("once", "OutcomeUnknown"), ("repeatable", "SoldOut")])
async def test_a_reset_repeats_a_workflow_only_if_it_may_run_again(serve: Serve, effect: Effect, error: str) -> None:
    """The workflow has ended. The outcome of a call with the effect `once` is unknown."""
    model = ScriptedModel(calls(("Order", {})), says("done"), says("done"))
    tool = WorkflowTool("Order", effect=effect)
    agent = Agent(name="clerk", model=model, tools=[tool])
    async with serve(agent, tasks_may_fail=True) as env, users_worker(env) as tool.task_queue:
        invocation = await start_and_finish(env.client.start("clerk", "hi"))
        await reset_run(env.temporal, await invocation.history(), 2)
        await env.client.invocation(invocation.id).result()
    assert [response["error_type"] for _, response in responses(model.requests[-1])] == [error]


async def signal(workflow: Any, name: str, value: str) -> None:
    """Send a signal to a workflow that may not exist yet."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await workflow.signal(name, value)  # type: ignore[no-any-return]
            except Exception:  # noqa: BLE001  # not started yet
                await asyncio.sleep(0.02)


async def test_histories_with_the_users_code_can_be_redacted(serve: Serve) -> None:
    """The redacted history has no text of the arguments and results, and replays in the same way."""
    model = ScriptedModel(calls(("quote", {"customer": "ada lovelace"})), says("done"))
    tool = NexusTool("quote", endpoint="unknown", service="quotes", schema=CUSTOMER)
    agent = Agent(name="clerk", model=model, tools=[tool])
    async with serve(agent) as env, users_worker(env, services=[Quotes()]) as tool.endpoint:
        invocation = await start_and_finish(env.client.start("clerk", "hi"))
        redacted = await redact(await invocation.saved(), ["text"])
    events = [event.SerializeToString() for run in redacted.histories for event in run.events]
    assert not any(b"lovelace" in event for event in events)
