"""Workers run agents of google-adk that are marked as replayable, and refuse bodies that cannot be replayed."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents import blocks, how_to
from tests.paths import ROOT
from tests.server.conftest import verify_tree
from tests.steps import catch_failure, start_and_wait
from verification.adk_agents.test_served_agents import AdkWorker, check, write
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.testing import FakeGemini

_queues = itertools.count()
AGENTS = """
import asyncio
from datetime import date
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.events import Event, EventActions
from google.adk.tools import LongRunningFunctionTool
from waystation.adk import replayable

def ask_manager() -> None:
    '''Ask.'''

first, third, other = (LlmAgent(name=name, model="gemini-3.5-flash") for name in ("first", "third", "other"))
second = LlmAgent(name="second", model="gemini-3.5-flash", tools=[LongRunningFunctionTool(ask_manager)])

@replayable
class Story(BaseAgent):
    async def _run_async_impl(self, ctx):
        first, second, third = self.sub_agents
        {body}

root_agent = Story(name="{name}", sub_agents=[first, second, third])
"""
SAY = 'yield Event(author=self.name, actions=EventActions(state_delta={"step": agent.name, "day": date(2026, 1, 2)}))'
STEPS = f"""
        for agent in (first, second, third):
            {SAY}
            async for event in agent.run_async(ctx):
                yield event
"""
CHANGED = {
    "order": (
        STEPS.replace("(first, second, third)", "(second, first, third)"),
        "Step 2 of the body of 'story' was to run 'first', and is now to run 'second'.",
    ),
    "no event": (
        STEPS.replace(SAY, "pass"),
        "Step 1 of the body of 'story' was to yield an event, and is now to run 'first'.",
    ),
    "end": (
        STEPS + "            return\n",
        "Step 3 of the body of 'story' was to yield an event, and is now to end.",
    ),
}
"""Bodies that do not repeat the steps of `STEPS`, and the failure of the invocation."""
REFUSED = {
    "gathers": (
        "await asyncio.gather(*(anext(agent.run_async(ctx)) for agent in (first, second))); yield",
        "The body of 'gathers' runs 'first' in another task; put agents that run at the same time into a "
        "ParallelAgent.",
    ),
    "writes": (
        "ctx.session.state['n'] = 1\n        async for event in first.run_async(ctx): yield event",
        "The body of 'writes' wrote the state 'n' before it runs 'first', which would not see it; yield an event with "
        "the `state_delta`.",
    ),
    "unlisted": (
        "async for event in other.run_async(ctx): yield event",
        "The body of 'unlisted' runs 'other', which is not in its `sub_agents`; add the agent there.",
    ),
    "branches": (
        "async for event in first.run_async(ctx.model_copy(update={'branch': 'b'})): yield event",
        "The body of 'branches' runs 'first' on another branch; put agents on separate branches into a ParallelAgent.",
    ),
    "odd": (
        "yield Event(author='odd', actions=EventActions(state_delta={'n': b'1'}))",
        "the body of 'odd': 'n' is bytes, which cannot be recorded; save them as an artifact, or return them "
        "base64-encoded.",
    ),
    "calls": (
        "yield Event(author='calls', content={'parts': [{'function_call': {'name': 'look', 'args': {}}}]})",
        "A body yielded an event with a function call or response; only sub-agents can call tools.",
    ),
}
"""The rest of a body, and the failure of its invocation, by the name of the agent."""


def source(name: str, body: str) -> str:
    """Return the source of an agent package."""
    return AGENTS.replace("{name}", name).replace("{body}", body.strip())


@pytest.fixture
def worker(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AdkWorker]:
    """Return a further worker process of the agents in the test's folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("GOOGLE_API_KEY", "test")
    queue = f"replayable-{os.getpid()}-{next(_queues)}"
    stores = [f"--{name}={tmp_path / name}" for name in ("artifacts", "memory", "credentials")]
    options = ("--agents", str(tmp_path), "--address", server.address, "--task-queue", queue, *stores)
    return lambda: AdkWorker(*options)


@pytest.mark.parametrize("change", [None, *CHANGED])
async def test_a_body_continues_after_a_crash_if_it_takes_the_same_steps(
    worker: Callable[[], AdkWorker],
    server: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str | None,
) -> None:
    """The worker is killed in the second sub-agent. A body whose steps have changed fails and names both steps."""
    write(tmp_path, "story", source("story", STEPS))
    async with FakeGemini() as gemini:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", gemini.url)
        gemini.reply(text="One.")
        gemini.reply(calls=[("ask_manager", {})])
        gemini.reply(text="Two.")
        gemini.reply(text="Three.")
        async with worker() as process:
            queue = str(process.facts["task_queue"])
            client = await AgentClient.connect(address=server.address, task_queue=queue)
            invocation = await start_and_wait(client.start("story", "Go."), "fc-2-1")
            await process.kill()
        await invocation.answer("respond", "fc-2-1", response={"status": "allowed"}, signal=True)
        if change:
            (tmp_path / "story" / "agent.py").write_text(source("story", CHANGED[change][0]))
        async with worker():
            if change:
                failed = await catch_failure(invocation)
                assert (failed.type, failed.message.partition(". ")[0] + ".") == ("BodyChanged", CHANGED[change][1])
            else:
                result = await invocation.result()
                assert (result.text, result.state_delta) == ("Three.", {"step": "third", "day": "2026-01-02"})
                assert gemini.remaining == 0
            await verify_tree(invocation)


def test_the_custom_agent_on_the_page_can_run(tmp_path: Path) -> None:
    """The check succeeds and reports the differences from ADK."""
    (block,) = (block for block in blocks(how_to("run-adk-agents"), "python") if "@replayable" in block)
    write(tmp_path, "drafts", block)
    code, logged = check(tmp_path)
    differs = [line["agent"] for line in logged if line["event"] == "adk_agent.differs"]
    assert (code, differs) == (0, ["drafts"])


async def test_bodies_that_cannot_be_replayed_fail_with_the_remedy(
    worker: Callable[[], AdkWorker], server: EmbeddedServer, tmp_path: Path
) -> None:
    """The invocation fails before a model is called."""
    for name, (body, _) in REFUSED.items():
        write(tmp_path, name, source(name, body))
    problems = {}
    async with worker() as process:
        client = await AgentClient.connect(address=server.address, task_queue=str(process.facts["task_queue"]))
        for name in REFUSED:
            invocation = await client.start(name, "Go.")
            problems[name] = (await catch_failure(invocation)).message
    assert problems == {name: problem for name, (_, problem) in REFUSED.items()}
