"""Two parallel agents, each with a tool that takes as long as the test wants."""

from tests.server.processes.agents.planned.agent import SOON_MISSED, hold, hold_once
from waystation.agents import Agent, ParallelAgent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, calls, responses, says
from waystation.tools.function_tool import FunctionTool


def holding(tool: FunctionTool) -> Agent:
    """Return an agent that calls the tool once, and reports the outcome."""

    def follow(request: LlmRequest) -> LlmResponse:
        told = responses(request)
        return says(str(told[0][1])) if told else calls((tool.name, {"gate": "after"}))

    return Agent(name=f"with_{tool.name}", model=FunctionModel(follow), tools=[tool])


root_agent = ParallelAgent(
    name="branches",
    sub_agents=[
        holding(FunctionTool(hold_once, heartbeat_timeout=SOON_MISSED, effect="once")),
        holding(FunctionTool(hold, heartbeat_timeout=SOON_MISSED)),
    ],
)
