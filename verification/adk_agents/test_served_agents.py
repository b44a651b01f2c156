"""Workers serve packages with google-adk agents, and refuse agents that cannot be durable."""

import itertools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents import blocks, how_to
from tests.paths import ROOT
from tests.programs import undisturbed
from tests.server.conftest import verify_tree
from tests.steps import start_and_wait, wait_for_calls
from verification.differential.conftest import PYTHON
from waystation.cli.demo import WorkerProcess
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.testing import FakeGemini

_queues = itertools.count()
REFUSED = {
    "own": (
        "from google.adk.agents import BaseAgent, SequentialAgent\n"
        "class Own(BaseAgent):\n"
        "    async def _run_async_impl(self, ctx):\n"
        "        yield\n"
        "root_agent = SequentialAgent(name='sequence', sub_agents=[Own(name='own')])\n",
        "Agent 'own': its class 'Own' defines `_run_async_impl`, which cannot be replayed; mark the class with "
        "`@replayable` of `waystation.adk` if it can run again from its start, or combine LlmAgent and composite "
        "agents, and put the code into tools and callbacks.",
    ),
    "graph": (
        "from google.adk import Workflow\n"
        "def start(node_input: str) -> str: return ''\n"
        "root_agent = Workflow(name='graph', edges=[('START', start)])\n",
        "Agent 'graph': a Workflow cannot run; use LlmAgent, SequentialAgent, ParallelAgent or LoopAgent.",
    ),
    "live_model": (
        "from google.adk import Agent\nroot_agent = Agent(name='live', model='gemini-live-2.5-flash-native-audio')\n",
        "Agent 'live': its model 'gemini-live-2.5-flash-native-audio' is for live audio. Live audio is not supported; "
        "remove the agent or give it another model or tool.",
    ),
    "live_tool": (
        "from google.adk import Agent\n"
        "from google.adk.agents import LiveRequestQueue\n"
        "async def watch(input_stream: LiveRequestQueue):\n"
        "    yield ''\n"
        "root_agent = Agent(name='watching', tools=[watch])\n",
        "Agent 'watching': its tool 'watch' takes `input_stream`. Live audio is not supported; remove the agent or "
        "give it another model or tool.",
    ),
    "task": (
        "from google.adk import Agent\nroot_agent = Agent(name='boss', sub_agents=[Agent(name='task', mode='task')])\n",
        "Agent 'task': `mode` is not supported. Only the mode `chat` is supported; wrap an agent that handles a single "
        "request in AgentTool.",
    ),
    "data_files": (
        "from google.adk import Agent\n"
        "from google.adk.code_executors import BaseCodeExecutor\n"
        "class Reading(BaseCodeExecutor):\n"
        "    optimize_data_file: bool = True\n"
        "    def execute_code(self, invocation_context, code_execution_input): ...\n"
        "root_agent = Agent(name='reading', code_executor=Reading())\n",
        "Agent 'reading': its code executor has `optimize_data_file`; read the files in a tool instead.",
    ),
    "files": (
        "from google.adk import Agent\n"
        "from google.adk.apps import App\n"
        "from google.adk.plugins.save_files_as_artifacts_plugin import SaveFilesAsArtifactsPlugin\n"
        "app = App(name='files', root_agent=Agent(name='reader'), plugins=[SaveFilesAsArtifactsPlugin()])\n",
        "Agent 'save_files_as_artifacts_plugin': files in messages are not replaced. Save each file as an artifact, "
        "and name it in the message.",
    ),
    "reserved_word": (
        "from google.adk import Agent\nroot_agent = Agent(name='return')\n",
        "Agent 'return': `name` is 'return': 'return' is not a valid identifier; use letters, digits and underscores.",
    ),
}
"""Sources of agent packages, each with the reported problem."""


def check(folder: Path) -> tuple[int, list[dict[str, str]]]:
    """Check the agents in a folder, and return the exit code and the log."""
    done = subprocess.run(
        [PYTHON, "-m", "waystation.worker", "check", "--agents", str(folder)],
        cwd=folder,
        env={**undisturbed(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def write(folder: Path, name: str, source: str) -> None:
    """Write an agent package."""
    (folder / name).mkdir()
    (folder / name / "agent.py").write_text(source)


def test_agents_that_cannot_be_durable_are_refused_by_name(tmp_path: Path) -> None:
    """Each agent that cannot be durable is reported with the remedy, before anything runs."""
    for name, (source, _) in REFUSED.items():
        write(tmp_path, name, source)
    code, logged = check(tmp_path)
    problems = {Path(line["place"]).name: line["problem"] for line in logged}
    assert (code, problems) == (1, {name: problem for name, (_, problem) in REFUSED.items()})


def test_check_explains_what_differs(tmp_path: Path) -> None:
    """The differences of each agent and plugin, and ignored settings of the app, are logged. The check succeeds."""
    source = blocks(how_to("run-adk-agents"), "python")[0]
    app = (
        "from google.adk.agents.context_cache_config import ContextCacheConfig\n"
        "from google.adk.apps import App, ResumabilityConfig\n"
        "from google.adk.plugins.logging_plugin import LoggingPlugin\n"
        "app = App(name='refunds', root_agent=root_agent, plugins=[LoggingPlugin()],\n"
        "    context_cache_config=ContextCacheConfig(), resumability_config=ResumabilityConfig(is_resumable=True))\n"
    )
    write(tmp_path, "refunds", source + app)
    code, logged = check(tmp_path)
    differs = [line for line in logged if line["event"] == "adk_agent.differs"]
    texts = {line.get("agent") or line.get("plugin") or line["app_setting"]: line["difference"] for line in differs}
    assert (code, texts) == (
        0,
        {
            "context_cache_config": "`context_cache_config` has no effect, because providers cache prompt prefixes "
            "automatically.",
            "resumability_config": "`resumability_config` has no effect, because every invocation can be resumed.",
            "refunds": "An exception in a tool is reported to the model; google-adk ends the run. If a worker crashes, "
            "its running tools run again, except those whose attribute `effect` is 'once'.",
            "logging_plugin": "`on_event_callback` is not called, because the workflow records events and failures.",
        },
    )


class AdkWorker(WorkerProcess):
    """A worker in the environment that has google-adk."""

    def __init__(self, *options: str) -> None:
        super().__init__(*options)
        self._command[0] = str(PYTHON)


@pytest.fixture
def worker(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AdkWorker]:
    """Return a further worker process of the agent on the page."""
    write(tmp_path, "refunds", blocks(how_to("run-adk-agents"), "python")[0])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("GOOGLE_API_KEY", "test")
    queue = f"adk-agents-{os.getpid()}-{next(_queues)}"
    stores = [f"--{name}={tmp_path / name}" for name in ("artifacts", "memory", "credentials")]
    options = ("--agents", str(tmp_path), "--address", server.address, "--task-queue", queue, *stores)
    return lambda: AdkWorker(*options)


async def test_agents_made_by_adk_create_run_under_the_names_of_their_packages(
    worker: Callable[[], AdkWorker], server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two agents named `root_agent`, like the authors of their events, run separately. Each knows its own replies."""
    for name in ("weather", "travel"):
        write(tmp_path, name, "from google.adk import Agent\nroot_agent = Agent(name='root_agent', model='gemini-x')\n")
    async with FakeGemini() as gemini:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", gemini.url)
        gemini.reply(text="Sun.")
        gemini.reply(text="Rain.")
        async with worker() as process:
            client = await AgentClient.connect(address=server.address, task_queue=str(process.facts["task_queue"]))
            session = client.session(agent="weather", session_id=client.task_queue)
            assert [(await session.say(text)).text for text in ("Today?", "Tomorrow?")] == ["Sun.", "Rain."]
            assert [event.author for event in await session.events()] == ["user", "root_agent"] * 2
            assert [content["role"] for content in gemini.requests[1].body["contents"]] == ["user", "model", "user"]


async def test_an_unmodified_agent_continues_after_a_crash(
    worker: Callable[[], AdkWorker], server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed while a call waits; another one finishes, and no tool runs twice."""
    async with FakeGemini() as gemini:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", gemini.url)
        gemini.reply(calls=[("find_order", {"order_id": "o-1"})])
        gemini.reply(calls=[("ask_manager", {"order_id": "o-1"})])
        gemini.reply(calls=[("refund", {"order_id": "o-1", "amount": 90})])
        gemini.reply(text="Refunded.")
        async with worker() as first:
            queue = str(first.facts["task_queue"])
            client = await AgentClient.connect(address=server.address, task_queue=queue)
            invocation = await start_and_wait(client.start("refunds", "Refund order o-1."), "fc-2")
            await first.kill()
        await invocation.answer("respond", "fc-2", response={"status": "allowed"}, signal=True)
        async with worker():
            await wait_for_calls(invocation, "fc-3")
            await invocation.answer("approve", "fc-3")
            result = await invocation.result()
            await verify_tree(invocation)
        assert (result.text, result.state_delta) == ("Refunded.", {"order": "o-1"})
        assert gemini.remaining == 0
        events = [event async for event in invocation.events()]
    responses = [response["response"] for event in events for response in event.function_responses()]
    assert responses[0] == {"order_id": "o-1", "total": 90}
    assert responses[-1] == {"refunded": 90}
