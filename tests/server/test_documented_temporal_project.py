"""The Python code of the page about Temporal projects works as the page describes."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.documents import blocks, how_to
from waystation import ActivityTool, Agent, AgentClient, NexusTool, WorkflowTool
from waystation.agents.registry import discover
from waystation.core import Settings, Stores
from waystation.embedded import EmbeddedServer
from waystation.testing import ScriptedModel, says
from waystation.worker import WORKER_OPTIONS, WaystationPlugin

PROGRAMS = blocks(how_to("work-in-a-temporal-project"), "python")
(AGENT,) = [program for program in PROGRAMS if "\nroot_agent = " in program]
(WORKFLOWS,) = [program for program in PROGRAMS if program.startswith("# workflows.py")]


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
    """Workers accept the agent; the model sees the names and parameters, and the code gets what the table says."""
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
    """One worker has both."""
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
        (called,) = [e async for e in client.list_workflows("WaystationAgent = 'returns_agent'")]
        assert (await AgentClient(client, task_queue=queue).invocation(called.id).result()).text == answer
