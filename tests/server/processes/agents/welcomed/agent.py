"""A sequence with callbacks before it, of an agent with callbacks whose model thinks until the test allows it."""

import asyncio

from tests.server.processes.ledger import ledger
from waystation.agents import Agent, SequentialAgent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, says
from waystation.tools.tool_context import CallbackContext


def welcome(callback_context: CallbackContext) -> None:
    """Record each entered agent, and how often it was entered."""
    agent, state = callback_context.agent_name, callback_context.state
    ledger().note("welcomed", agent=agent, key=callback_context.idempotency_key)
    state[agent] = state.get(agent, 0) + 1


async def think(request: LlmRequest) -> LlmResponse:
    """Wait for the gate, then report the number of this attempt."""
    ledger().note("thinking", attempt=request.attempt)
    await asyncio.to_thread(ledger().wait, "thought")
    return says(f"attempt {request.attempt}")


guest = Agent(name="guest", model=FunctionModel(think), before_agent_callback=welcome)
root_agent = SequentialAgent(name="welcomed", sub_agents=[guest], before_agent_callback=welcome)
