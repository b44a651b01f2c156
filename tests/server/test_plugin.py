"""Agents as a plugin of a user's own Temporal client and worker."""

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from tests.server.user_workflow import InSandbox
from waystation import AgentClient
from waystation.agents import Agent
from waystation.core import InvalidConfiguration, Settings, Stores, WorkflowSettings
from waystation.embedded import EmbeddedServer
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.worker import WORKER_OPTIONS, WaystationPlugin, create_worker


class Closing(BaseToolset):
    """A toolset that records that it was closed."""

    closed = 0

    async def get_tools(self, readonly_context: object = None) -> list[BaseTool]:
        return []

    async def close(self) -> None:
        self.closed += 1


def settings(store: Path) -> Settings:
    return Settings(stores=Stores(payloads=store))


async def test_agents_are_served_beside_a_users_workflow(server: EmbeddedServer, tmp_path: Path) -> None:
    """One worker runs both; the user's workflow stays in the sandbox, and the agents answer."""
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    client = await Client.connect(server.address, plugins=[WaystationPlugin([agent], settings=settings(tmp_path))])
    async with Worker(client, task_queue="beside", workflows=[InSandbox], **WORKER_OPTIONS):
        assert await client.execute_workflow(InSandbox.run, id="in-sandbox", task_queue="beside")
        assert (await AgentClient(client, task_queue="beside").run("clerk", "hi")).text == "hello"


async def test_a_client_without_a_payload_store_is_refused(server: EmbeddedServer, tmp_path: Path) -> None:
    """Otherwise anyone could block its workflows with a reference to a stored payload."""
    client = await Client.connect(server.address)
    plugin = WaystationPlugin([Agent(name="clerk")], settings=settings(tmp_path))
    with pytest.raises(InvalidConfiguration, match=r"no payload store\. Connect it with `plugins="):
        Worker(client, task_queue="refused", plugins=[plugin])


async def test_tools_and_models_are_closed_when_the_last_worker_stops(server: EmbeddedServer, tmp_path: Path) -> None:
    """Two workers of one client share the agents."""
    toolset = Closing()
    agent = Agent(name="clerk", model=ScriptedModel(), tools=[toolset])
    client = await Client.connect(server.address, plugins=[WaystationPlugin([agent], settings=settings(tmp_path))])
    async with Worker(client, task_queue="first"):
        async with Worker(client, task_queue="second"):
            pass
        assert toolset.closed == 0
    assert toolset.closed == 1


async def test_workers_have_our_limit_for_workflow_tasks(server: EmbeddedServer, tmp_path: Path) -> None:
    """The SDK still has the private place where the plugin sets it; slow tests show that it takes effect."""
    own = dataclasses.replace(settings(tmp_path), workflow_task_limit=timedelta(seconds=5))
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    client = await Client.connect(server.address, plugins=[WaystationPlugin([agent], settings=own)])
    async with Worker(client, task_queue="limited", **WORKER_OPTIONS) as worker:
        await AgentClient(client, task_queue="limited").run("clerk", "hi")
        workflows: Any = vars(worker)["_workflow_worker"]
        assert vars(workflows)["_deadlock_timeout_seconds"] == 5


async def test_settings_reach_workflows(server: EmbeddedServer, tmp_path: Path) -> None:
    """Activities have the timeouts of the worker's settings."""
    defaults = WorkflowSettings()
    short = dataclasses.replace(defaults.model, start_to_close=timedelta(seconds=77))
    given = dataclasses.replace(settings(tmp_path), workflow=dataclasses.replace(defaults, model=short))
    agent = Agent(name="clerk", model=ScriptedModel(calls(("unknown", {})), says("hello")))
    client = await Client.connect(server.address)
    async with create_worker(client, [agent], task_queue="settings", settings=given):
        invocation = await AgentClient(client, task_queue="settings").start("clerk", "hi")
        await invocation.result()
    history = await invocation.history()
    scheduled = next(e.activity_task_scheduled_event_attributes for e in history.events if e.event_type == 10)
    assert scheduled.start_to_close_timeout.ToTimedelta() == timedelta(seconds=77)
