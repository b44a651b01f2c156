"""Agents with pending calls, for the tests of pages."""

from typing import Any

from tests.agents import Till
from tests.steps import start_and_wait
from waystation.agents import Agent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core import ids
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


def payer(till: Till, *args: dict[str, Any], **tool: Any) -> Agent:
    """Return an agent whose payments need approval. It makes one payment per given set of arguments."""

    def pay(amount: float, to: str = "", note: str = "") -> dict[str, Any]:
        till.paid.append(int(amount))
        return {"paid": amount}

    replies = [calls(*(("pay", each) for each in args), text="I pay now."), says("Done.")]
    options = {"require_confirmation": True, **tool}
    return Agent(name="payer", model=ScriptedModel(*replies), tools=[FunctionTool(pay, **options)])


def asker(*questions: str) -> Agent:
    """Return an agent that asks a person and continues with the answer."""

    def ask(question: str) -> None:
        """Ask a person."""

    replies = [calls(*(("ask", {"question": each}) for each in questions)), *[says("Done.")] * 3]
    return Agent(name="asker", model=ScriptedModel(*replies), tools=[LongRunningFunctionTool(ask)])


async def begun(client: AgentClient, agent: str, **options: Any) -> tuple[Invocation, str]:
    """Start an agent and wait until its first call is pending. Return the invocation and the approval id."""
    invocation = await start_and_wait(client.start(agent, "Please pay what I owe.", **options))
    return invocation, ids.approval(invocation.id, "fc-1")
