"""A sequence of a loop, in which an agent needs a person's agreement, and of an agent that closes the books."""

from tests.server.processes.agents.planned.agent import pay
from tests.server.processes.ledger import ledger
from waystation.agents import Agent, LoopAgent, SequentialAgent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, calls, responses, says, user_text
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def close_books(tool_context: ToolContext) -> str:
    """Close the books."""
    ledger().note("closed", key=tool_context.idempotency_key)
    return "closed"


def payer(request: LlmRequest) -> LlmResponse:
    """Return an agent that pays the amount in the message, once in all rounds."""
    told = responses(request)
    return says(f"paid {told[0][1]['paid']}") if told else calls(("pay", {"amount": int(user_text(request))}))


def closer(request: LlmRequest) -> LlmResponse:
    """Close the books, and say so."""
    return says("books closed") if responses(request) else calls(("close_books", {}))


paying = Agent(name="payer", model=FunctionModel(payer), tools=[FunctionTool(pay, require_confirmation=True)])
rounds = LoopAgent(name="rounds", sub_agents=[paying], max_iterations=2)
closing = Agent(name="closer", model=FunctionModel(closer), tools=[close_books])
root_agent = SequentialAgent(name="pipeline", sub_agents=[rounds, closing])
