"""The Python code of the page about Temporal projects works as the page describes."""

import ast
import asyncio
import importlib.util
import inspect
import shlex
import subprocess
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.documents import blocks, how_to, section
from tests.paths import ROOT
from tests.server.processes.workers import wait_for_listed
from tests.server.user_workflow import Onboarding, RunsOperation
from tests.server.workflows.test_workflow_tools import signal
from verification.cluster.temporal_cluster import create_namespace
from waystation import ActivityTool, Agent, AgentClient, NexusTool, WorkflowTool
from waystation.apps.registry import discover
from waystation.cli.demo import WorkerProcess
from waystation.core.contract import Settings, Stores
from waystation.embedded import EmbeddedServer, find_temporal
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.worker import WORKER_OPTIONS, AgentService, WaystationPlugin

PROGRAMS = blocks(how_to("work-in-a-temporal-project"), "python")
(AGENT,) = [program for program in PROGRAMS if "\nroot_agent = " in program]
(WORKFLOWS,) = [program for program in PROGRAMS if program.startswith("# workflows.py")]
(SERVICE,) = [program for program in PROGRAMS if program.startswith("# worker.py")]
(ENDPOINT,) = blocks(how_to("work-in-a-temporal-project"), "sh")
(BESIDE,) = blocks(section(how_to("run-workers"), "## Serve agents beside your own workflows"), "python")


def load(source: str, path: Path) -> ModuleType:
    """Import a program of the page."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_agent_has_the_tools_that_the_page_describes(tmp_path: Path) -> None:
    """Workers accept the agent; the model sees names and parameters, and the code receives the values of the table."""
    (tmp_path / "support").mkdir()
    (tmp_path / "support" / "agent.py").write_text(AGENT)
    registry, problems = discover([tmp_path])
    assert problems == []
    agent = registry.roots["support_agent"].agent
    assert isinstance(agent, Agent)
    clock, refund, onboard, quote = agent.tools
    assert isinstance(clock, ActivityTool)
    assert (clock.name, clock.description) == ("get_current_time", "Returns the current time in a specified city.")
    assert isinstance(refund, ActivityTool)
    assert refund.prepare({"order": "A1", "cents": 5}) == {"order": "A1", "cents": 5}
    assert isinstance(onboard, WorkflowTool)
    assert onboard.prepare({"customer": "ada"}) == {"customer": "ada", "plan": "free"}
    assert onboard.parameters == ("customer", "plan")
    assert isinstance(quote, NexusTool)


async def test_the_workflow_runs_the_agent(server: EmbeddedServer, tmp_path: Path) -> None:
    """One worker serves the workflow and the agent."""
    module = load(WORKFLOWS, tmp_path / "documented_workflows.py")
    answer = '{"approved": false, "reason": "It is too late."}'
    agent = Agent(name="returns_agent", model=ScriptedModel(says(answer)), output_schema=module.Decision)
    plugin = WaystationPlugin([agent], settings=Settings(stores=Stores(payloads=tmp_path)))
    client = await Client.connect(server.address, plugins=[plugin])
    queue = "documented-project"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[module.Returns],
        workflow_runner=UnsandboxedWorkflowRunner(),
        **WORKER_OPTIONS,
    ):
        done = await client.execute_workflow("Returns", "The vase is broken", id="returns", task_queue=queue)
        assert done == "It is too late."
        (called,) = await wait_for_listed(client, "WaystationAgent = 'returns_agent'")
        assert (await AgentClient(client, task_queue=queue).invocation(called).result()).text == answer


async def create_worker(program: str, server: EmbeddedServer, queue: str, **names: Any) -> Worker:
    """Run a program of a page, whose parts have the given names. Return the worker that it creates."""
    text = program.replace("localhost:7233", server.address).replace('"waystation"', repr(queue))
    names |= {
        "Client": Client,
        "Worker": Worker,
        "WaystationPlugin": WaystationPlugin,
    }
    result = eval(compile(text, "program", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(result):
        await result
    worker = names["worker"]
    assert isinstance(worker, Worker)
    return worker


@activity.defn
async def greet() -> str:
    """Say hello."""
    return "hello"


async def test_one_worker_serves_agents_and_the_users_code(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent uses the activity and the workflow of the worker that serves it."""
    monkeypatch.chdir(tmp_path)
    queue = f"beside-{uuid.uuid4().hex}"
    model = ScriptedModel(calls(("greet", {}), ("Onboarding", {"customer": "ada"})), says("done"))
    onboarding = WorkflowTool("Onboarding", schema={"type": "object", "additionalProperties": True})
    agent = Agent(name="clerk", model=model, tools=[ActivityTool("greet"), onboarding])
    names = {"root_agent": agent, "Onboarding": Onboarding, "greet": greet}
    async with await create_worker(BESIDE, server, queue, **names) as worker:
        client = AgentClient(worker.client, task_queue=queue)
        invocation = await client.start("clerk", "hi")
        await signal(worker.client.get_workflow_handle(f"{invocation.id}/fc-2"), "sign", "dana")
        assert (await invocation.result()).text == "done"
    assert responses(model.requests[-1]) == [
        ("greet", {"result": "hello"}),
        ("Onboarding", {"customer": "ada", "signed_by": "dana"}),
    ]


async def call_from_another_namespace(server: EmbeddedServer, queue: str, agent: str) -> str:
    """Create the endpoint of the page, and run an agent in a workflow of another namespace. Return its answer."""
    command = ENDPOINT.replace("--name agents", f"--name {queue}").replace("-queue waystation", f"-queue {queue}")
    _, *arguments = shlex.split(command)
    arguments += ["--address", server.address]
    process = await asyncio.create_subprocess_exec(find_temporal(), *arguments, stdout=subprocess.DEVNULL)
    assert await process.wait() == 0
    await create_namespace(server.address, f"of-{queue}")
    other = await Client.connect(server.address, namespace=f"of-{queue}")
    async with Worker(other, task_queue="callers", workflows=[RunsOperation]):
        return await other.execute_workflow(RunsOperation.run, args=[queue, agent], id="calls", task_queue="callers")


async def test_a_workflow_of_another_namespace_runs_an_agent(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is that of the page, and Temporal's command line creates the endpoint."""
    monkeypatch.chdir(tmp_path)
    queue = f"service-{uuid.uuid4().hex}"
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    async with await create_worker(SERVICE, server, queue, root_agent=agent, AgentService=AgentService):
        assert await call_from_another_namespace(server, queue, "clerk") == "hello"


@pytest.mark.slow
async def test_the_worker_command_serves_the_nexus_service(server: EmbeddedServer) -> None:
    """`--nexus` replaces a separate program."""
    queue = f"command-{uuid.uuid4().hex}"
    options = ("--agents", str(ROOT / "examples"), "--model", "demo", "--nexus")
    async with WorkerProcess(*options, "--address", server.address, "--task-queue", queue):
        assert await call_from_another_namespace(server, queue, "calculator_agent")
