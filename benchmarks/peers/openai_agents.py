"""openai-agents on Temporal.

Packages: temporalio-openai-agents.
"""

from typing import Any

from agents import Agent, Runner, function_tool
from agents.items import ModelResponse
from agents.models.interface import Model, ModelProvider
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from temporalio import workflow
from temporalio.client import Client
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool
from temporalio.worker import Replayer, Worker

from benchmarks.side import SYSTEM, Scenario, TemporalSide
from benchmarks.temporal_parts import LIMIT, WaitsForApproval, lookup


class FakeModel(Model):
    """A model that replies with the scenario's tool calls, then with its final text."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        """Return one reply."""
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        scenario = Scenario.parse(items[0]["content"])
        output: list[Any]
        if any(item.get("type") == "function_call_output" for item in items):
            text = ResponseOutputText(text="f" * scenario.final, annotations=[], type="output_text")
            output = [
                ResponseOutputMessage(id="", role="assistant", status="completed", type="message", content=[text])
            ]
        else:
            output = [
                ResponseFunctionToolCall(
                    type="function_call",
                    id=f"f{i}",
                    call_id=f"c{i}",
                    name=scenario.tool,
                    status="completed",
                    arguments=f'{{"size":{scenario.size}}}',
                )
                for i in range(scenario.calls)
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **options: Any) -> Any:
        """Fail; the scenarios do not stream."""
        raise NotImplementedError


class FakeProvider(ModelProvider):
    """Provides the fake model."""

    def get_model(self, model_name: str | None) -> Model:
        """Return the fake model."""
        return FakeModel()


@function_tool(needs_approval=True)
async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return str(await workflow.execute_activity(lookup, size, start_to_close_timeout=LIMIT))


@workflow.defn
class OpenAIAgent(WaitsForApproval):
    """The agent's workflow."""

    @workflow.run
    async def run(self, text: str) -> str:
        """Return the model's final text."""
        tools = [activity_as_tool(lookup, start_to_close_timeout=LIMIT), danger]
        agent = Agent(name="bench", instructions=SYSTEM, model="fake", tools=tools)
        result = await Runner.run(agent, text)
        while result.interruptions:
            await self.wait_for_approval()
            state = result.to_state()
            for interruption in result.interruptions:
                state.approve(interruption)
            result = await Runner.run(agent, state)
        return str(result.final_output)


def _plugin() -> OpenAIAgentsPlugin:
    parameters = ModelActivityParameters(start_to_close_timeout=LIMIT)
    return OpenAIAgentsPlugin(model_params=parameters, model_provider=FakeProvider())


class OpenAIAgents(TemporalSide):
    """openai-agents, in the SDK's sandbox, with its defaults."""

    workflow = "OpenAIAgent"

    async def connect(self) -> Client:
        """Return a client with the plugin."""
        return await Client.connect(self.address, plugins=[_plugin()])

    def make_worker(self, client: Client) -> Worker:
        """Return a worker."""
        return Worker(client, task_queue=self.queue, workflows=[OpenAIAgent], activities=[lookup])

    def replayer(self) -> Replayer:
        """Return a replayer for the histories of this side."""
        return Replayer(workflows=[OpenAIAgent], plugins=[_plugin()])


SIDE = OpenAIAgents
