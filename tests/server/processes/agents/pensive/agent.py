"""An agent whose model thinks until the test opens a gate."""

import asyncio

from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, says


async def think(request: LlmRequest) -> LlmResponse:
    """Wait for the gate, then report the number of this attempt."""
    ledger().note("thinking", attempt=request.attempt)
    await asyncio.to_thread(ledger().wait, "thought")
    return says(f"attempt {request.attempt}")


root_agent = Agent(name="pensive", model=FunctionModel(think))
