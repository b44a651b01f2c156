"""The engine's side: an agent whose model is a function, served by `create_worker`.

python -m benchmarks.engine ADDRESS [FILE]      a worker process; `danger` appends a line to FILE each time it runs
"""

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from benchmarks.process import run_until_orphaned
from benchmarks.scenario import APPROVE, FINAL, SYSTEM, Scenario
from waystation.agents import Agent
from waystation.agents.registry import Registry
from waystation.client import connect
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core import Body, Budget
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext
from waystation.worker import create_worker
from waystation.workflows.invocation import AgentInvocation

QUEUE = "engine"
AGENT = "bench_agent"


def reply(request: LlmRequest) -> LlmResponse:
    """Reply with the next tool calls, or with the final text."""
    scenario = Scenario.of(request.contents[0]["parts"][0]["text"])
    call_count = len(request.contents) // 2
    if call_count == scenario.steps:
        return says(FINAL)
    return calls(*[(scenario.tool, {"size": scenario.size})] * scenario.calls)


async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


def agent(witness: Path | None = None) -> Agent:
    """Return the agent; each run of `danger` appends a line to the file `witness`."""

    async def danger(size: int, tool_context: ToolContext) -> str:
        """Return `size` bytes; needs an approval."""
        if witness:
            with witness.open("a") as file:
                file.write(f"{tool_context.idempotency_key}\n")
        return "r" * size

    return Agent(
        name=AGENT,
        model=FunctionModel(reply),
        instruction=SYSTEM,
        tools=[lookup, FunctionTool(danger, require_confirmation=True)],
    )


class Engine:
    """Run the scenarios on the engine, through its client."""

    def __init__(self, client: Client) -> None:
        self._client = AgentClient(client, task_queue=QUEUE)

    async def start(self, scenario: Scenario) -> Invocation:
        """Start an invocation."""
        budget = Budget(max_llm_calls=scenario.steps + 1) if scenario.steps > 100 else None
        return await self._client.start(AGENT, scenario.text(), budget=budget)

    async def run(self, scenario: Scenario) -> str:
        """Run an invocation to its end; return its id."""
        invocation = await self.start(scenario)
        await invocation.result()
        return invocation.id

    async def start_waiting(self) -> str:
        """Start an invocation, wait until its call is pending, and return its id."""
        invocation = await self.start(APPROVE)
        while not await invocation.handle.query("pending"):  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.01)
        return invocation.id

    async def approve(self, id: str, *, signal: bool = True) -> None:
        """Approve, by signal or by update, and wait for the result."""
        invocation = self._client.invocation(id)
        await invocation.answer("approve", "fc-1", signal=signal)
        await invocation.result()

    async def count(self, id: str, kind: type[Body]) -> int:
        """Count the entries of a kind in an invocation's log."""
        return sum(isinstance(entry.body, kind) for entry in (await self._client.invocation(id).log()).entries)

    def replayer(self) -> Replayer:
        """Return a replayer for the histories of this side."""
        return Replayer(workflows=[AgentInvocation], workflow_runner=UnsandboxedWorkflowRunner())


async def make_worker(address: str, witness: Path | None = None) -> Worker:
    """Create the worker."""
    return create_worker(await connect(address=address), Registry.of(agent(witness)), task_queue=QUEUE)


if __name__ == "__main__":
    run_until_orphaned(make_worker(sys.argv[1], *map(Path, sys.argv[2:])))
