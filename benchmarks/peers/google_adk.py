"""google-adk, without Temporal: in one process, with sessions in memory.

Packages: google-adk.
"""

import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from google.adk.agents import Agent
from google.adk.models import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

from benchmarks.side import SYSTEM, Scenario

CONFIRMATION = "adk_request_confirmation"


class FakeModel(BaseLlm):
    """A model that replies with the scenario's tool calls, then with its final text."""

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


async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return "r" * size


class GoogleAdk:
    """google-adk; all work is done in the client process."""

    worker_pids: Sequence[int] = ()

    def __init__(self, address: str, queue: str, workers: int) -> None:
        """Configure nothing: there is no server."""

    async def open(self) -> None:
        """Create the runner."""
        tools = [lookup, FunctionTool(danger, require_confirmation=True)]
        agent = Agent(name="bench", model=FakeModel(model="fake-model"), instruction=SYSTEM, tools=tools)
        self._runner = InMemoryRunner(agent=agent, app_name="bench")

    async def _send(self, session: str, part: types.Part) -> list[str]:
        """Send a message; return the IDs of the calls that ask for a confirmation."""
        message = types.Content(role="user", parts=[part])
        return [
            call.id
            async for event in self._runner.run_async(user_id="user", session_id=session, new_message=message)
            for call in event.get_function_calls()
            if call.name == CONFIRMATION
        ]

    async def start_waiting(self, scenario: Scenario) -> tuple[str, list[str]]:
        """Run an invocation until it ends or needs approvals; return its session and the calls that need them."""
        session = uuid.uuid4().hex
        await self._runner.session_service.create_session(app_name="bench", user_id="user", session_id=session)
        return session, await self._send(session, types.Part(text=scenario.text()))

    async def run(self, scenario: Scenario) -> str:
        """Run an invocation to its end; return its session."""
        return (await self.start_waiting(scenario))[0]

    async def approve(self, waiting: tuple[str, list[str]], scenario: Scenario) -> str:
        """Approve the pending call, and wait for the result; return the session."""
        session, [call] = waiting
        confirmed = ToolConfirmation(confirmed=True).model_dump(mode="json")
        response = types.FunctionResponse(id=call, name=CONFIRMATION, response=confirmed)
        await self._send(session, types.Part(function_response=response))
        return session


SIDE = GoogleAdk
