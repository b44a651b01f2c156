"""Temporal's google-adk plugin: the agent loop of google-adk, in a workflow.

Packages: temporalio-google-adk.
"""

from typing import Any

from google.adk.agents import Agent
from google.adk.models import LLMRegistry
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.google_adk import GoogleAdkPlugin, TemporalModel, hitl_confirmation_response, pending_hitl_requests
from temporalio.google_adk.workflow import activity_as_tool
from temporalio.worker import Replayer, Worker

from benchmarks.peers.google_adk import FakeModel
from benchmarks.side import SYSTEM, Scenario, TemporalSide
from benchmarks.temporal_parts import LIMIT, WaitsForApproval, lookup

MODEL = "fake-model"


class NamedModel(FakeModel):
    """The model of the side without Temporal, which activities find by its name."""

    model: str = MODEL

    @classmethod
    def supported_models(cls) -> list[str]:
        """Return the name under which activities find this model."""
        return [MODEL]


LLMRegistry.register(NamedModel)


@activity.defn
async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return "r" * size


@workflow.defn
class TemporalAdkAgent(WaitsForApproval):
    """The agent's workflow."""

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
            await self.wait_for_approval()
            confirmed = [hitl_confirmation_response(request.interrupt_id, confirmed=True) for request in requests]
            message = types.Content(role="user", parts=confirmed)


async def load_modules() -> None:
    """Run an agent outside a workflow. google-adk imports many modules late, which takes longer than a workflow may."""
    runner = InMemoryRunner(agent=Agent(name="bench", model=NamedModel(), instruction=SYSTEM), app_name="bench")
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
