"""Workflows of other teams run agents through Nexus."""

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from nexusrpc import HandlerError, HandlerErrorType
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.worker import Worker

from tests.server.approvals.asking import asker, listed
from tests.server.conftest import Serve
from tests.server.processes.workers import wait_for_listed
from tests.server.user_workflow import RunsOperation
from waystation import Agent
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER
from waystation.core.ids import fairness_key
from waystation.testing import AgentEnvironment, ScriptedModel, says
from waystation.worker import AgentService


@asynccontextmanager
async def endpoint(env: AgentEnvironment) -> AsyncIterator[str]:
    """Run a worker with the service for agents. Yield the name of an endpoint that leads to its task queue."""
    queue = env.client.task_queue
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace=env.temporal.namespace, task_queue=queue))
    request = CreateNexusEndpointRequest(spec=EndpointSpec(name=queue, target=target))
    await env.temporal.operator_service.create_nexus_endpoint(request)
    async with Worker(env.temporal, task_queue=queue, nexus_service_handlers=[AgentService()]):
        yield queue


def callers(client: Client, endpoint: str) -> AbstractAsyncContextManager[Worker]:
    """Return a worker of another team, which has no agents. Its task queue is `callers-<endpoint>`."""
    return Worker(client, task_queue=f"callers-{endpoint}", workflows=[RunsOperation])


async def test_a_workflow_runs_an_agent(serve: Serve) -> None:
    """The worker that serves the agent has the service. The invocation has the fairness key of its user."""
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    async with serve(agent) as env, endpoint(env) as name, callers(env.temporal, name) as worker:
        text = await env.temporal.execute_workflow(
            RunsOperation.run, args=[name, "clerk"], id=f"calls-{name}", task_queue=worker.task_queue
        )
        [id] = await wait_for_listed(env.temporal, f"WorkflowType = 'AgentInvocation' AND TaskQueue = '{name}'")
        started_event = (await env.client.invocation(id).history()).events[0]
    assert text == "hello"
    assert started_event.workflow_execution_started_event_attributes.priority.fairness_key == fairness_key(
        DEFAULT_APP, DEFAULT_USER
    )


async def test_a_canceled_workflow_cancels_its_agent(serve: Serve) -> None:
    """The operation ends when the invocation is canceled. The pending call of the agent leaves the inbox."""
    agent = asker(f"asker_{uuid.uuid4().hex}")
    async with serve(agent) as env, endpoint(env) as name, callers(env.temporal, name) as worker:
        workflow = await env.temporal.start_workflow(
            RunsOperation.run, args=[name, agent.name], id=f"calls-{name}", task_queue=worker.task_queue
        )

        [call] = await listed(env.client, 1, agent=agent.name)
        invocation = env.client.invocation(call.invocation_id)
        await workflow.cancel()
        with pytest.raises(WorkflowFailureError):
            await workflow.result()
        assert (await invocation.handle.describe()).status is WorkflowExecutionStatus.CANCELED
        assert (await workflow.describe()).status is WorkflowExecutionStatus.CANCELED
        await listed(env.client, 0, agent=agent.name)


async def test_a_workflow_of_another_namespace_runs_an_agent(serve: Serve) -> None:
    """Only the endpoint leads to the namespace of the agents; the caller has no client for it."""
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    async with serve(agent) as env, endpoint(env) as name:
        retention = Duration(seconds=int(timedelta(days=1).total_seconds()))
        request = RegisterNamespaceRequest(namespace=f"of-{name}", workflow_execution_retention_period=retention)
        await env.temporal.workflow_service.register_namespace(request)
        other = await Client.connect(env.temporal.service_client.config.target_host, namespace=f"of-{name}")
        async with callers(other, name) as worker:
            text = await other.execute_workflow(
                RunsOperation.run, args=[name, "clerk"], id="calls", task_queue=worker.task_queue
            )
    assert text == "hello"


@pytest.mark.parametrize("field", ["fork", "carried", "origin", "session", "standing"])
async def test_a_caller_cannot_set_trusted_fields(field: str) -> None:
    """A fork, for example, would read a conversation that the caller may not see. The refusal names the field."""
    context: Any = None  # refused before anything is started
    fields = {"agent": "clerk", "message": "hi", field: {"invocation_id": "of-somebody-else", "event": 2}}
    with pytest.raises(HandlerError, match=repr(field)) as refused:
        await AgentService().run(context, fields)
    assert refused.value.type is HandlerErrorType.BAD_REQUEST
