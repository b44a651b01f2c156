"""Eight parallel agents that each remember five words at once, and then report the responses."""

import json

from tests.server.processes.agents.planned.agent import remember
from waystation.agents import Agent, ParallelAgent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, calls, responses, says


def member(name: str) -> Agent:
    """Return one of the agents."""

    def follow(request: LlmRequest) -> LlmResponse:
        told = responses(request)
        if told:
            return says(json.dumps([response["known"] for _, response in told]))
        return calls(*(("remember", {"word": f"{name}-{number}"}) for number in range(5)))

    return Agent(name=name, model=FunctionModel(follow), tools=[remember])


root_agent = ParallelAgent(name="wide", sub_agents=[member(f"m{number}") for number in range(8)])
