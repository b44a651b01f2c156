"""Temporal's google-adk plugin: the agent loop of google-adk, in a workflow.

Packages: temporalio-google-adk.
"""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from google.adk.agents import Agent
from google.adk.models import BaseLlm, LLMRegistry
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.google_adk import GoogleAdkPlugin, TemporalModel, hitl_confirmation_response, pending_hitl_requests
from temporalio.google_adk.workflow import activity_as_tool
from temporalio.worker import Replayer, Worker

from benchmarks.side import SYSTEM, Scenario, TemporalSide

LIMIT = timedelta(seconds=60)
MODEL = "fake-model"


class FakeModel(BaseLlm):
    """A model that replies with the scenario's tool calls, then with its final text."""

    model: str = MODEL

    @classmethod
    def supported_models(cls) -> list[str]:
        """Return the name under which activities find this model."""
        return [MODEL]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        """Yield one reply."""
        parts = [part for content in llm_request.contents for part in content.parts]
        scenario = Scenario.parse(next(part.text for part in parts if part.text))
        if any(part.function_response and "r" * 20 in str(part.function_response.response) for part in parts):
            reply = [types.Part(text="f" * scenario.final)]
        else:
            call = types.FunctionCall(name=scenario.tool, args={"size": scenario.size})
            reply = [types.Part(function_call=call.model_copy(update={"id": f"c{i}"})) for i in range(scenario.calls)]
        yield LlmResponse(content=types.Content(role="model", parts=reply))


LLMRegistry.register(FakeModel)


@activity.defn
async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


@activity.defn
async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return "r" * size


@workflow.defn
class TemporalAdkAgent:
    """The agent's workflow."""

    def __init__(self) -> None:
        self._pending = False
        self._approved = False

    @workflow.run
    async def run(self, text: str) -> str:
        """Return the model's final text."""
        tools = [
            activity_as_tool(lookup, start_to_close_timeout=LIMIT),
            FunctionTool(activity_as_tool(danger, start_to_close_timeout=LIMIT), require_confirmation=True),
        ]
        agent = Agent(name="bench", model=TemporalModel(MODEL), instruction=SYSTEM, tools=tools)
        runner = InMemoryRunner(agent=agent, app_name="bench")
        session = await runner.session_service.create_session(app_name="bench", user_id="user")
        message = types.Content(role="user", parts=[types.Part(text=text)])
        while True:
            requests, answer = list[Any](), ""
            async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
                requests += pending_hitl_requests(event)
                if event.content and event.content.parts and event.content.parts[0].text:
                    answer = event.content.parts[0].text
            if not requests:
                return answer
            self._pending = True
            await workflow.wait_condition(lambda: self._approved)
            confirmed = [hitl_confirmation_response(request.interrupt_id, confirmed=True) for request in requests]
            message = types.Content(role="user", parts=confirmed)

    @workflow.signal
    def approve(self) -> None:
        """Let the tool run."""
        self._approved = True

    @workflow.query
    def pending(self) -> bool:
        """Return whether a call needs an approval."""
        return self._pending


async def load_modules() -> None:
    """Run an agent outside a workflow. google-adk imports many modules late, which takes longer than a workflow may."""
    runner = InMemoryRunner(agent=Agent(name="bench", model=FakeModel(), instruction=SYSTEM), app_name="bench")
    session = await runner.session_service.create_session(app_name="bench", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=Scenario(calls=0).text())])
    async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        pass


class TemporalGoogleAdk(TemporalSide):
    """Temporal's google-adk plugin, in the SDK's sandbox, with its defaults."""

    workflow = "TemporalAdkAgent"

    async def connect(self) -> Client:
        """Return a client with the plugin."""
        return await Client.connect(self.address, plugins=[GoogleAdkPlugin()])

    async def serve(self) -> None:
        """Load google-adk, then serve a worker until the process is killed."""
        await load_modules()
        await super().serve()

    def make_worker(self, client: Client) -> Worker:
        """Return a worker."""
        return Worker(client, task_queue=self.queue, workflows=[TemporalAdkAgent], activities=[lookup, danger])

    def replayer(self) -> Replayer:
        """Return a replayer for the histories of this side."""
        return Replayer(workflows=[TemporalAdkAgent], plugins=[GoogleAdkPlugin()])


SIDE = TemporalGoogleAdk
