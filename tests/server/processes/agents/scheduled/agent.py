"""An agent that follows the plan in its message, with calls that last some time, quick calls and called agents."""

import asyncio

from tests.server.processes.agents.planned.agent import SOON_MISSED, follow
from waystation.agents import Agent
from waystation.testing.models import FunctionModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


async def rest(seconds: float) -> float:
    """Rest."""
    await asyncio.sleep(seconds)
    return seconds


def glance() -> str:
    """Glance."""
    return "seen"


def ask() -> None:
    """Ask somebody."""


resting = FunctionTool(rest, heartbeat_timeout=SOON_MISSED)
helper = Agent(
    name="helper",
    description="Helps.",
    model=FunctionModel(lambda request: says("Helped.") if responses(request) else calls(("rest", {"seconds": 0.1}))),
    tools=[resting],
)
root_agent = Agent(
    name="scheduled",
    model=FunctionModel(follow),
    tools=[resting, FunctionTool(glance, effect="read", quick=True), LongRunningFunctionTool(ask), AgentTool(helper)],
)
