"""pydantic-ai on Temporal.

Packages: pydantic-ai-slim[temporal].
"""

from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalDurability
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Replayer, Worker

from benchmarks.side import SYSTEM, Scenario, TemporalSide
from benchmarks.temporal_parts import WaitsForApproval


async def reply(messages: Any, info: Any) -> ModelResponse:
    """Reply with the scenario's tool calls, then with its final text."""
    parts = [part for message in messages for part in message.parts]
    scenario = Scenario.parse(next(part.content for part in parts if isinstance(part, UserPromptPart)))
    if any(isinstance(part, ToolReturnPart) for part in parts):
        return ModelResponse(parts=[TextPart("f" * scenario.final)])
    args = {"size": scenario.size}
    return ModelResponse(parts=[ToolCallPart(scenario.tool, args, tool_call_id=f"c{i}") for i in range(scenario.calls)])


agent: Any = Agent(
    FunctionModel(reply),
    name="bench",
    instructions=SYSTEM,
    output_type=[str, DeferredToolRequests],
    capabilities=[TemporalDurability()],
)


@agent.tool_plain
async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


@agent.tool_plain(requires_approval=True)
async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return "r" * size


@workflow.defn
class PydanticAgent(WaitsForApproval):
    """The agent's workflow."""

    @workflow.run
    async def run(self, text: str) -> str:
        """Return the model's final text."""
        result = await agent.run(text)
        while isinstance(result.output, DeferredToolRequests):
            await self.wait_for_approval()
            approvals = {call.tool_call_id: True for call in result.output.approvals}
            answers = DeferredToolResults(approvals=approvals)
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
        return str(result.output)


class PydanticAI(TemporalSide):
    """pydantic-ai, in the SDK's sandbox, with its defaults."""

    workflow = "PydanticAgent"

    async def connect(self) -> Client:
        """Return a client with the plugin."""
        return await Client.connect(self.address, plugins=[PydanticAIPlugin()])

    def make_worker(self, client: Client) -> Worker:
        """Return a worker."""
        return Worker(client, task_queue=self.queue, workflows=[PydanticAgent], plugins=[AgentPlugin(agent)])

    def replayer(self) -> Replayer:
        """Return a replayer for the histories of this side."""
        return Replayer(workflows=[PydanticAgent], plugins=[PydanticAIPlugin()])


SIDE = PydanticAI
