"""A user's own workers with Temporal's worker versioning, one build after another."""

import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest as MakeCurrent
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkerDeploymentConfig
from temporalio.workflow import _Definition

from tests.server.processes.workers import until
from waystation import Agent, AgentClient, ApprovalPolicy
from waystation.core.contract import Settings, Stores
from waystation.embedded import EmbeddedServer
from waystation.testing import ScriptedModel, assert_invocation_holds, calls, says
from waystation.tools import FunctionTool
from waystation.worker import WaystationPlugin
from waystation.workflows.versioned import VERSIONED

DEFAULTS = [VersioningBehavior.UNSPECIFIED, VersioningBehavior.PINNED, VersioningBehavior.AUTO_UPGRADE]


def pay() -> str:
    """Pay."""
    return "paid"


async def start_build(
    stack: AsyncExitStack, address: str, store: Path, config: WorkerDeploymentConfig, model: ScriptedModel
) -> AgentClient:
    """Run a worker of a build until `stack` closes, on a task queue named like the deployment. Make it current."""
    agent = Agent(name="clerk", model=model, tools=[FunctionTool(pay, approval=ApprovalPolicy())])
    plugin = WaystationPlugin([agent], settings=Settings(stores=Stores(payloads=store)))
    client, queue = await Client.connect(address, plugins=[plugin]), config.version.deployment_name
    await stack.enter_async_context(Worker(client, task_queue=queue, deployment_config=config))
    request = MakeCurrent(namespace="default", deployment_name=queue, build_id=config.version.build_id)

    async def make_current() -> bool:
        try:
            return bool(await client.workflow_service.set_worker_deployment_current_version(request))
        except RPCError:  # the server does not know the build yet
            return False

    await until(make_current, "the build")
    return AgentClient(client, task_queue=queue)


@pytest.mark.parametrize("default", DEFAULTS, ids=lambda default: default.name)
async def test_what_is_open_moves_to_the_next_build(
    server: EmbeddedServer, tmp_path: Path, default: VersioningBehavior
) -> None:
    """An invocation that waits and a session continue after a rolling deploy, whatever the worker's default is."""
    queue = f"versioned-{uuid.uuid4().hex}"
    first, second = (WorkerDeploymentConfig(WorkerDeploymentVersion(queue, build), True, default) for build in "12")
    model = ScriptedModel(says("hello from 1"), calls(("pay", {})))
    async with AsyncExitStack() as old, AsyncExitStack() as new:
        client = await start_build(old, server.address, tmp_path, first, model)
        session = client.session(agent="clerk", session_id=queue, user_id="ann")
        assert (await session.say("hi")).text == "hello from 1"
        waiting = await client.start("clerk", "pay")
        await until(waiting.pending, "a call that waits")
        await start_build(new, server.address, tmp_path, second, ScriptedModel(says("paid by 2"), says("hello from 2")))
        await old.aclose()
        await waiting.approve()
        assert (await waiting.result()).text == "paid by 2"
        assert (await session.say("hi")).text == "hello from 2"
        await assert_invocation_holds(waiting)
    await session.handle.terminate()


@pytest.mark.parametrize("plain", VERSIONED, ids=lambda plain: plain.__name__)
def test_versioned_definitions_differ_only_in_their_behavior(plain: type) -> None:
    """Both definitions handle the same signals, updates and queries, and fail for the same errors."""
    before, after = (vars(_Definition.must_from_class(cls)) for cls in (plain, VERSIONED[plain]))
    differing = {name for name, value in after.items() if value != before[name]}
    assert differing == {"cls", "run_fn", "versioning_behavior"}
