"""Invocations that are held while the corpus is recorded."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from temporalio.client import WorkflowFailureError

from waystation.agents import Agent, ReadonlyContext
from waystation.client.agent_client import Invocation
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools import BaseTool, BaseToolset
from waystation.tools.function_tool import FunctionTool


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


class Till(BaseToolset):
    """A toolset that lists `pay` unless it is unavailable."""

    is_away = False

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the tool, or raise if the toolset is unavailable."""
        if self.is_away:
            raise ConnectionError("no network")
        return [FunctionTool(pay, require_confirmation=True)]


TILL = Till()


def payer() -> Agent:
    """Return an agent whose toolset the scenario makes unavailable."""
    TILL.is_away = False
    model = ScriptedModel(calls(("pay", {"amount": 5})), says("It is over."))
    return Agent(name="clerk", model=model, tools=[TILL])


def approved_while_away(*, gives_up: bool) -> Callable[[AgentEnvironment, Invocation], Awaitable[None]]:
    """Approve the call while the toolset is unavailable. Then give up, or make the toolset available again."""

    async def act(env: AgentEnvironment, invocation: Invocation) -> None:
        while not await invocation.pending():
            await asyncio.sleep(0.02)
        TILL.is_away = True
        await invocation.approve("fc-1", by="dana")
        while not await env.client.held.holds(invocation.id):
            await asyncio.sleep(0.02)
        if gives_up:
            await env.client.held.give_up(invocation.id)
        else:
            TILL.is_away = False
        with contextlib.suppress(WorkflowFailureError):
            await invocation.result()

    return act
