"""Agents that many tests serve, with their models and tools. Each one follows a script, so a test states only its
special options.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.steps import LIMIT_S
from waystation.agents import Agent, BaseAgent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

PAY = calls(("pay", {"amount": 5}))
ASK = calls(("ask", {}))


def speaks(name: str, *replies: Any, **fields: Any) -> Agent:
    """Return an agent with scripted replies."""
    return Agent(name=name, model=ScriptedModel(*replies), **fields)


def payer(pay: Callable[..., Any], *replies: Any, name: str = "payer", **options: Any) -> Agent:
    """Return an agent that pays 5 and then says "Done.", or follows the given replies.

    A payment needs a confirmation, unless the options of the tool have an approval policy.
    """
    tool = FunctionTool(pay, **{"require_confirmation": "approval" not in options, **options})
    return speaks(name, *(replies or (PAY, says("Done."))), tools=[tool])


def ask() -> None:
    """Ask somebody."""


def asker(*replies: Any, name: str = "asker", **fields: Any) -> Agent:
    """Return an agent that asks somebody and then says "Done.", or follows the given replies."""
    return speaks(name, *(replies or (ASK, says("Done."))), tools=[LongRunningFunctionTool(ask)], **fields)


def model_of(agent: BaseAgent) -> ScriptedModel:
    """Return the script of an agent, with the requests that it has received."""
    assert isinstance(agent, Agent)
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


class Gate:
    """Holds callers until the test opens it."""

    def __init__(self) -> None:
        self._reached, self._opened = asyncio.Event(), asyncio.Event()

    async def passed(self) -> None:
        """Wait until the gate is open. Tools and models call this."""
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        """Wait until a caller waits at the gate. Tests call this."""
        async with asyncio.timeout(LIMIT_S):
            await self._reached.wait()

    def open(self) -> None:
        """Let every caller through."""
        self._opened.set()


class HeldModel(ScriptedModel):
    """A scripted model with one call that is held at a gate."""

    def __init__(self, *replies: Any, held_call: int) -> None:
        super().__init__(*replies)
        self.gate, self._held_call = Gate(), held_call

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next prepared reply, the held one when the gate is open."""
        response = await super().generate(request, on_text=on_text)
        if len(self.requests) == self._held_call:
            await self.gate.passed()
        return response


class Till:
    """Tools with a counted side effect."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def pay(self, amount: int) -> dict[str, int]:
        """Pay somebody."""
        self.paid.append(amount)
        return {"paid": amount}
